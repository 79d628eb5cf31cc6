//! Modules: their kernels and variables, read from the text of the PTX.

use std::collections::BTreeMap;

use super::Machine;
use super::kernel::Kernel;
use crate::code::{Code, Result};

/// The variable in which glake's module counts wrong words.
const MISMATCHES: &str = "glake_mismatches";

#[derive(Debug)]
struct Module {
    context: u64,
    /// None where the image is not text: then it has every kernel that is asked for.
    entries: Option<Vec<String>>,
    /// Address and bytes by name.
    globals: BTreeMap<String, (u64, u64)>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) kernel: Kernel,
}

/// Modules and functions by their handles.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: BTreeMap<u64, Module>,
    functions: BTreeMap<u64, Function>,
}

impl Modules {
    /// What was loaded into a context is gone; its variables went with the context's memory.
    pub(crate) fn end_context(&mut self, context: u64) {
        self.modules.retain(|_, module| module.context != context);
        let modules = &self.modules;
        self.functions.retain(|_, function| modules.contains_key(&function.module));
    }

    pub(crate) fn function(&self, function: u64) -> Result<&Function> {
        self.functions.get(&function).ok_or(Code::INVALID_HANDLE)
    }

    /// Where a module counts wrong words.
    pub(crate) fn mismatches(&self, module: u64) -> Option<u64> {
        Some(self.modules.get(&module)?.globals.get(MISMATCHES)?.0)
    }

    /// Address and bytes of a variable.
    pub(crate) fn global(&self, module: u64, name: &str) -> Result<(u64, u64)> {
        let module = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        module.globals.get(name).copied().ok_or(Code::NOT_FOUND)
    }
}

impl Machine {
    /// Loads a module into the current context: the text of its PTX, or another image.
    pub(crate) fn load_module(&mut self, ptx: Option<&str>) -> Result<u64> {
        let context = self.current()?;
        let mut globals = BTreeMap::new();
        for (name, bytes) in ptx.map(variables).unwrap_or_default() {
            let start = self.allocate(context, bytes, None)?;
            globals.insert(name, (start, bytes));
        }
        let id = self.id();
        self.modules.modules.insert(id, Module { context, entries: ptx.map(entries), globals });
        Ok(id)
    }

    pub(crate) fn unload_module(&mut self, id: u64) -> Result {
        let module = self.modules.modules.remove(&id).ok_or(Code::INVALID_HANDLE)?;
        self.modules.functions.retain(|_, function| function.module != id);
        for (start, _) in module.globals.into_values() {
            self.free(start);
        }
        Ok(())
    }

    /// A handle for a kernel of a module.
    pub(crate) fn find_function(&mut self, module: u64, name: &str) -> Result<u64> {
        let found = self.modules.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let has = found.entries.as_ref().is_none_or(|entries| entries.iter().any(|entry| entry == name));
        if !has {
            return Err(Code::NOT_FOUND);
        }
        let id = self.id();
        self.modules.functions.insert(id, Function { module, kernel: Kernel::named(name) });
        Ok(id)
    }
}

/// What begins with a letter and goes on as names do in PTX.
fn name(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    text.split(|c| !is_part(c)).next().unwrap_or_default()
}

/// The kernels that a text defines.
fn entries(ptx: &str) -> Vec<String> {
    ptx.split(".entry").skip(1).map(|rest| name(rest.trim_start()).to_owned()).collect()
}

/// The variables in device memory that a text defines, with their sizes: `.global` with an
/// alignment, a type, a name and the length of an array.
fn variables(ptx: &str) -> Vec<(String, u64)> {
    ptx.lines().filter_map(variable).collect()
}

fn variable(line: &str) -> Option<(String, u64)> {
    let mut words = line.split_whitespace();
    words.next().filter(|first| first.starts_with('.'))?;
    line.contains(".global ").then_some(())?;
    let words: Vec<&str> = words.collect();
    let is_type = |word: &&str| matches!(word.get(..2), Some(".b" | ".u" | ".s" | ".f"));
    let at = words.iter().position(|word| is_type(word) && word[2..].parse::<u64>().is_ok())?;
    let bits: u64 = words[at][2..].parse().ok()?;
    let declared = words.get(at + 1)?;
    let length = declared.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.parse().ok());
    Some((name(declared).to_owned(), bits / 8 * length.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_text() {
        let ptx = "\
.visible .global .align 8 .u64 glake_mismatches;
.global .align 4 .b8 table[24] = {1, 2};
.visible .entry fill(
\t.param .u64 fill_param_0
)
{
\tld.global.u64 \t%rd1, [%rd2];
}
\t// .globl\tother
.entry other()";
        assert_eq!(entries(ptx), ["fill", "other"]);
        let expected = [("glake_mismatches".to_owned(), 8), ("table".to_owned(), 24)];
        assert_eq!(variables(ptx), expected);
    }
}
