//! Graphs and user objects.

use std::ffi::{c_char, c_void};

use crate::abi::{Callback, HostFunction, Out};
use crate::code::Code;

/// `CU_GRAPH_USER_OBJECT_MOVE`: the caller's references become the graph's.
const MOVE: u32 = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, the one flag there is, and required.
const NO_DESTRUCTOR_SYNC: u32 = 1;

driver_functions! {
    fn cuGraphCreate(graph: Out<u64>, flags: u32) |machine| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let id = machine.new_graph();
        graph.put(id)
    }

    fn cuGraphDestroy(graph: u64) |machine| { machine.destroy_graph(graph) }

    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, n: Out<u64>) |machine| {
        let _ = nodes;
        n.put(machine.graph_len(graph)? as u64)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, flags: u64) |machine| {
        let _ = flags;
        machine.current()?;
        exec.put(machine.instantiate(graph)?)
    }

    fn cuGraphInstantiate_v2(
        exec: Out<u64>,
        graph: u64,
        error_node: Out<u64>,
        log: *mut c_char,
        log_bytes: u64,
    ) |machine| {
        let _ = (error_node, log, log_bytes);
        machine.current()?;
        exec.put(machine.instantiate(graph)?)
    }

    fn cuGraphUpload(exec: u64, stream: u64) |machine| {
        let _ = exec;
        machine.stream(stream).map(drop)
    }

    fn cuGraphLaunch(exec: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        machine.launch_graph(exec, stream)
    }

    fn cuGraphExecDestroy(exec: u64) |machine| { machine.destroy_exec(exec) }

    fn cuUserObjectCreate(
        object: Out<u64>,
        data: *mut c_void,
        destroy: Option<HostFunction>,
        n: u32,
        flags: u32,
    ) |machine| {
        let function = destroy.ok_or(Code::INVALID_VALUE)?;
        if flags != NO_DESTRUCTOR_SYNC || n == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let data = data.expose_provenance() as u64;
        let id = machine.new_object(Callback { function, data }, n.into());
        object.put(id)
    }

    fn cuUserObjectRetain(object: u64, n: u32) |machine| { machine.retain_object(object, n.into()) }

    fn cuUserObjectRelease(object: u64, n: u32) |machine| { machine.release_object(object, n.into()) }

    fn cuGraphRetainUserObject(graph: u64, object: u64, n: u32, flags: u32) |machine| {
        if flags > MOVE || n == 0 {
            return Err(Code::INVALID_VALUE);
        }
        machine.hold(graph, object, n.into())?;
        if flags == MOVE { Ok(()) } else { machine.retain_object(object, n.into()) }
    }

    fn cuGraphReleaseUserObject(graph: u64, object: u64, n: u32) |machine| {
        machine.let_go_of(graph, object, n.into())
    }
}
