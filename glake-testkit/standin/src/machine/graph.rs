//! Graphs, what can be launched of them, and the user objects that they keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Machine;
use super::work::Op;
use crate::abi::Callback;
use crate::code::{Code, Result};

/// User objects by id, and how often each is held.
type Held = BTreeMap<u64, u64>;

#[derive(Debug)]
struct Graph {
    ops: Arc<[Op]>,
    held: Held,
}

#[derive(Debug)]
struct Exec {
    ops: Arc<[Op]>,
    held: Held,
    n_pending: u64,
    is_destroyed: bool,
}

/// What happens when nobody holds an object any more.
#[derive(Clone, Debug)]
enum Then {
    CallBack(Callback),
    /// Memory that was allocated inside a capture goes back.
    Free(u64),
}

#[derive(Debug)]
struct Object {
    n_held: u64,
    then: Then,
}

/// Everything about graphs.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    plans: BTreeMap<u64, Graph>,
    execs: BTreeMap<u64, Exec>,
    objects: BTreeMap<u64, Object>,
}

impl Machine {
    /// An empty graph.
    pub(crate) fn new_graph(&mut self) -> u64 {
        let id = self.id();
        self.graphs.plans.insert(id, Graph { ops: Arc::new([]), held: Held::new() });
        id
    }

    pub(crate) fn fill_graph(&mut self, graph: u64, ops: Vec<Op>) {
        if let Some(graph) = self.graphs.plans.get_mut(&graph) {
            graph.ops = graph.ops.iter().cloned().chain(ops).collect();
        }
    }

    /// How many items a graph has.
    pub(crate) fn graph_len(&self, graph: u64) -> Result<usize> {
        self.graphs.plans.get(&graph).map(|graph| graph.ops.len()).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn destroy_graph(&mut self, graph: u64) -> Result {
        let graph = self.graphs.plans.remove(&graph).ok_or(Code::INVALID_VALUE)?;
        self.let_go(&graph.held);
        Ok(())
    }

    /// Makes a graph ready to be launched; it keeps what the graph keeps.
    pub(crate) fn instantiate(&mut self, graph: u64) -> Result<u64> {
        let graph = self.graphs.plans.get(&graph).ok_or(Code::INVALID_VALUE)?;
        let (ops, held) = (Arc::clone(&graph.ops), graph.held.clone());
        for object in held.keys() {
            if let Some(object) = self.graphs.objects.get_mut(object) {
                object.n_held += 1;
            }
        }
        let held = held.into_keys().map(|object| (object, 1)).collect();
        let id = self.id();
        self.graphs.execs.insert(id, Exec { ops, held, n_pending: 0, is_destroyed: false });
        Ok(id)
    }

    pub(crate) fn launch_graph(&mut self, exec: u64, stream: u64) -> Result {
        let found = self.graphs.execs.get(&exec).filter(|exec| !exec.is_destroyed);
        let ops = Arc::clone(&found.ok_or(Code::INVALID_VALUE)?.ops);
        self.enqueue(stream, Op::Graph { exec, ops }, Vec::new())
    }

    /// Destroys what can be launched; what is pending still runs.
    pub(crate) fn destroy_exec(&mut self, exec: u64) -> Result {
        let found = self.graphs.execs.get_mut(&exec).filter(|exec| !exec.is_destroyed);
        found.ok_or(Code::INVALID_VALUE)?.is_destroyed = true;
        self.end_exec(exec);
        Ok(())
    }

    fn end_exec(&mut self, id: u64) {
        let is_over = |exec: &Exec| exec.is_destroyed && exec.n_pending == 0;
        if self.graphs.execs.get(&id).is_some_and(is_over)
            && let Some(exec) = self.graphs.execs.remove(&id)
        {
            self.let_go(&exec.held);
        }
    }

    /// Pending work keeps what it needs.
    pub(crate) fn retain_op(&mut self, op: &Op) {
        if let Op::Graph { exec, .. } = op
            && let Some(exec) = self.graphs.execs.get_mut(exec)
        {
            exec.n_pending += 1;
        }
    }

    /// Work that ran, or never will, keeps nothing any more.
    pub(crate) fn release_op(&mut self, op: &Op) {
        if let Op::Graph { exec, .. } = op {
            if let Some(exec) = self.graphs.execs.get_mut(exec) {
                exec.n_pending -= 1;
            }
            self.end_exec(*exec);
        }
    }

    /// A user object, held so often.
    pub(crate) fn new_object(&mut self, callback: Callback, n_held: u64) -> u64 {
        let id = self.id();
        self.graphs.objects.insert(id, Object { n_held, then: Then::CallBack(callback) });
        id
    }

    pub(crate) fn retain_object(&mut self, object: u64, n: u64) -> Result {
        self.graphs.objects.get_mut(&object).ok_or(Code::INVALID_VALUE)?.n_held += n;
        Ok(())
    }

    pub(crate) fn release_object(&mut self, id: u64, n: u64) -> Result {
        let object = self.graphs.objects.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
        object.n_held = object.n_held.checked_sub(n).ok_or(Code::INVALID_VALUE)?;
        if object.n_held == 0
            && let Some(object) = self.graphs.objects.remove(&id)
        {
            match object.then {
                Then::CallBack(callback) => self.call_back(callback),
                Then::Free(start) => self.free(start),
            }
        }
        Ok(())
    }

    /// A graph keeps an object, so often.
    pub(crate) fn hold(&mut self, graph: u64, object: u64, n: u64) -> Result {
        self.graphs.objects.contains_key(&object).then_some(()).ok_or(Code::INVALID_VALUE)?;
        let graph = self.graphs.plans.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        *graph.held.entry(object).or_default() += n;
        Ok(())
    }

    /// A graph keeps an object no longer.
    pub(crate) fn let_go_of(&mut self, graph: u64, object: u64, n: u64) -> Result {
        let graph = self.graphs.plans.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        let held = graph.held.get_mut(&object).filter(|held| **held >= n).ok_or(Code::INVALID_VALUE)?;
        *held -= n;
        if *held == 0 {
            graph.held.remove(&object);
        }
        self.release_object(object, n)
    }

    /// Memory allocated inside a capture lives as long as the graph and what is made of it.
    pub(crate) fn keep_memory(&mut self, capture: u64, start: u64) -> Result {
        let graph = self.captures.get(&capture).ok_or(Code::CAPTURE_INVALIDATED)?.graph;
        let id = self.id();
        self.graphs.objects.insert(id, Object { n_held: 1, then: Then::Free(start) });
        self.hold(graph, id, 1)
    }

    /// Whether memory is a graph's.
    pub(crate) fn is_kept(&self, start: u64) -> bool {
        self.graphs.objects.values().any(|object| matches!(object.then, Then::Free(of) if of == start))
    }

    fn let_go(&mut self, held: &Held) {
        for (object, n) in held {
            // An object that is held is there.
            let _ = self.release_object(*object, *n);
        }
    }
}
