//! How often each function was called, and which call is to fail.

use std::collections::BTreeMap;

use super::config::Failure;
use crate::code::{Code, Result};

/// Counts and planned failures.
#[derive(Debug, Default)]
pub(crate) struct Account {
    counts: BTreeMap<&'static str, u64>,
    planned: Vec<Failure>,
}

impl Account {
    pub(crate) fn new(planned: &[Failure]) -> Self {
        Self { planned: planned.to_vec(), ..Self::default() }
    }

    /// Counts a call; an error if it was planned to fail.
    pub(crate) fn count(&mut self, name: &'static str) -> Result {
        *self.counts.entry(name).or_default() += 1;
        let mut failed = Ok(());
        self.planned.retain_mut(|failure| {
            if failure.name != name {
                return true;
            }
            failure.nth = failure.nth.saturating_sub(1);
            if failure.nth == 0 {
                failed = Err(Code(failure.code));
            }
            failure.nth > 0
        });
        failed
    }

    /// How often a function was called.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn plan(&mut self, failure: Failure) {
        self.planned.push(failure);
    }

    /// Forgets what is planned; returns how many failures did not come.
    pub(crate) fn forget_plans(&mut self) -> usize {
        std::mem::take(&mut self.planned).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_once() {
        let plan = Failure { name: "cuX".to_owned(), nth: 2, code: 7 };
        let mut account = Account::new(std::slice::from_ref(&plan));
        let outcomes = ["cuX", "cuY", "cuX", "cuX"].map(|name| account.count(name));
        assert_eq!(outcomes, [Ok(()), Ok(()), Err(Code(7)), Ok(())]);
        assert_eq!((account.calls("cuX"), account.calls("cuZ")), (3, 0));
        account.plan(plan);
        assert_eq!((account.forget_plans(), account.forget_plans()), (1, 0));
    }
}
