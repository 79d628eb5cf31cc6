//! The scopes of [`Gpu::tagged`](crate::Gpu::tagged) that are open on a device, kept in its thread.

use std::cell::RefCell;

thread_local! {
    static DEVICE: RefCell<Device> = RefCell::default();
}

#[derive(Default)]
struct Device {
    scopes: Scopes,
    /// That of the innermost scope: a tag is of the thread that made it.
    tag: Option<glake_hook::Tag>,
}

/// Opens a scope in the device's thread, which this is; [`end`] takes what it returns.
pub(crate) fn begin(hook: glake_hook::Glake, name: &'static str) -> u64 {
    change(hook, |scopes| scopes.begin(name))
}

pub(crate) fn end(hook: glake_hook::Glake, scope: u64) {
    change(hook, |scopes| scopes.end(scope));
}

fn change<R>(hook: glake_hook::Glake, change: impl FnOnce(&mut Scopes) -> R) -> R {
    DEVICE.with_borrow_mut(|device| {
        let changed = change(&mut device.scopes);
        // The last one ends first: it would restore what was before it.
        drop(device.tag.take());
        device.tag = device.scopes.innermost().map(|name| hook.tag(name));
        changed
    })
}

/// Open scopes. Those of several threads end in any order.
#[derive(Default)]
struct Scopes {
    open: Vec<(u64, &'static str)>,
    n_begun: u64,
}

impl Scopes {
    fn begin(&mut self, name: &'static str) -> u64 {
        self.n_begun += 1;
        self.open.push((self.n_begun, name));
        self.n_begun
    }

    fn end(&mut self, scope: u64) {
        self.open.retain(|&(open, _)| open != scope);
    }

    fn innermost(&self) -> Option<&'static str> {
        self.open.last().map(|&(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_itself_and_no_other() {
        let mut scopes = Scopes::default();
        let (first, second) = (scopes.begin("first"), scopes.begin("second"));
        scopes.end(first);
        assert_eq!(scopes.innermost(), Some("second"));
        let third = scopes.begin("third");
        scopes.end(third);
        assert_eq!(scopes.innermost(), Some("second"));
        scopes.end(second);
        assert_eq!(scopes.innermost(), None);
    }
}
