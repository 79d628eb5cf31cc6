//! Why something did not come about, and what to do.

use cubecl_runtime::server::ServerError;

/// Why glake is not under burn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// cubecl's settings were read before, with another allocator in them.
    #[error(
        "cubecl's settings are already in use with the synchronous allocator: install glake before the first \
         use of burn, and where the program sets cubecl's settings itself, set memory.cuda.allocator to async"
    )]
    SettingsInUse,
    /// The hook under the driver is not active.
    #[error(transparent)]
    Hook(#[from] glake_hook::InstallError),
}

/// Why cubecl gave nothing back.
#[derive(Debug, thiserror::Error)]
#[error("cubecl keeps its memory: {0}; it does so while a graph is recorded")]
pub struct CollectError(#[source] pub(crate) Box<ServerError>);
