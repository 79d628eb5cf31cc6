//! What a program gets where candle is built for the CPU.
#![cfg(not(feature = "cuda"))]

use glake_candle::{Config, Glake, InstallError};

#[test]
fn install_says_which_feature_is_missing() {
    let error = glake_candle::install(Config::new()).unwrap_err();
    assert_eq!(error, InstallError::CpuBuild);
    assert!(error.to_string().contains("cargo add glake-candle --features cuda"), "{error}");
    assert!(Glake::installed().is_none());
}
