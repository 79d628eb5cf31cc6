//! What a program gets where candle is built for the CPU.
#![cfg(not(feature = "cuda"))]

use glake_candle::{Config, Glake, InstallError};

#[test]
fn install_says_which_feature_is_missing() {
    let error = glake_candle::install(Config::new()).unwrap_err();
    assert_eq!(error, InstallError::CpuBuild);
    // A `main` that returns the error prints it by `Debug`.
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.contains("cargo add glake-candle --features cuda"), "{text}");
    }
    assert!(Glake::installed().is_none());
}
