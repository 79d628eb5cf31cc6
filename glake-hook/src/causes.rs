//! Errors as programs print them.

use std::error::Error;
use std::fmt;

/// An error, and why it came about, in one line: most programs, and frameworks that carry an error on, print its text
/// alone.
///
/// ```
/// use glake_hook::WithCauses;
/// let error = std::fmt::Error;
/// assert_eq!(WithCauses(&error).to_string(), error.to_string());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WithCauses<'a>(pub &'a dyn Error);

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
