//! Modules and launches.

use std::ffi::c_void;

use crate::abi::{In, Out, Text};
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::kernel::Launch;
use crate::machine::work::Op;

driver_functions! {
    fn cuModuleLoadData(module: Out<u64>, image: Text) |machine| {
        module.put(load(machine, &image)?)
    }

    fn cuModuleLoadDataEx(
        module: Out<u64>,
        image: Text,
        n_options: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) |machine| {
        let _ = (n_options, options, values);
        module.put(load(machine, &image)?)
    }

    fn cuModuleUnload(module: u64) |machine| {
        let context = machine.current()?;
        machine.check_unsafe()?;
        machine.run_context(context)?;
        machine.unload_module(module)
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) |machine| {
        machine.current()?;
        function.put(machine.find_function(module, &name.get()?)?)
    }

    fn cuModuleGetGlobal_v2(start: Out<u64>, bytes: Out<u64>, module: u64, name: Text) |machine| {
        machine.current()?;
        let (at, n_bytes) = machine.modules.global(module, &name.get()?)?;
        start.put_if_wanted(at);
        bytes.put_if_wanted(n_bytes);
        Ok(())
    }

    fn cuFuncSetAttribute(function: u64, attribute: u32, value: i32) |machine| {
        let _ = (attribute, value);
        machine.modules.function(function).map(drop)
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: u64) |machine| {
        const MAX_THREADS_PER_BLOCK: u32 = 0;
        machine.modules.function(function)?;
        value.put(if attribute == MAX_THREADS_PER_BLOCK { 1024 } else { 0 })
    }

    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        parameters: In<*const u64>,
        extra: In<u64>,
    ) |machine| {
        let _ = shared_bytes;
        let grid = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(machine, function, grid, &parameters, &extra, stream)
    }

    fn cuLaunchCooperativeKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        parameters: In<*const u64>,
    ) |machine| {
        let _ = shared_bytes;
        let grid = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(machine, function, grid, &parameters, &In::null(), stream)
    }
}

/// Loads PTX, known by its text, or another image.
fn load(machine: &mut Machine, image: &Text) -> Result<u64> {
    machine.current()?;
    machine.check_unsafe()?;
    let is_text = image.first()?.is_ascii_graphic() || image.first()?.is_ascii_whitespace();
    let text = if is_text { Some(image.get()?) } else { None };
    machine.load_module(text.as_deref())
}

fn launch(
    machine: &mut Machine,
    function: u64,
    grid: [u32; 6],
    parameters: &In<*const u64>,
    extra: &In<u64>,
    stream: u64,
) -> Result {
    if grid.contains(&0) {
        return Err(Code::INVALID_VALUE);
    }
    let stream = machine.stream(stream)?;
    let function = machine.modules.function(function)?.clone();
    let n_words = function.kernel.n_words();
    if n_words > 0 && !extra.is_null() {
        return Err(Code::NOT_SUPPORTED);
    }
    let word = |index| In::of(parameters.at(index)?).get();
    let words = (0..n_words).map(word).collect::<Result<Vec<u64>>>()?;
    let mismatches = machine.modules.mismatches(function.module);
    let launch = Launch { kernel: function.kernel, words, mismatches };
    machine.enqueue(stream, Op::Kernel(launch), Vec::new())
}
