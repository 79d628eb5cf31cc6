//! Why something did not come about, and what to do.

use std::fmt;

use cubecl_runtime::server::ServerError;

/// Why glake is not under burn.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// cubecl's settings were read before, with another allocator in them.
    #[error(
        "glake is not active: cubecl uses its settings already, with the synchronous allocator. Install glake before \
         the first use of burn, and where the program sets cubecl's settings itself, set memory.cuda.allocator to \
         async"
    )]
    SettingsInUse,
    /// The hook under the driver is not active.
    #[error(transparent)]
    Hook(#[from] glake_hook::InstallError),
}

// As text: a `main` that returns an error prints it by `Debug`, and what to do has to be read there.
impl fmt::Debug for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why cubecl gave nothing back.
#[derive(thiserror::Error)]
#[error("cubecl keeps its memory: {0}; it does so while a graph is recorded")]
pub struct CollectError(#[source] pub(crate) Box<ServerError>);

impl fmt::Debug for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_returns_says_what_to_do() {
        let errors = [InstallError::SettingsInUse, glake_hook::InstallError::TooLate.into()];
        for (error, advice) in errors.iter().zip(["Install glake before", "first thing in `main`"]) {
            assert!(format!("{error:?}").contains(advice), "{error:?}");
        }
    }
}
