//! Everything behind the one lock: devices, contexts, memory, streams, graphs.

use std::collections::{BTreeMap, BTreeSet};

use crate::abi::Callback;
use crate::call;
use crate::code::{Code, Result};

pub(crate) mod account;
pub(crate) mod capture;
pub(crate) mod config;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod kernel;
pub(crate) mod module;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod space;
pub(crate) mod stream;
pub(crate) mod work;

use account::Account;
use capture::Captures;
use config::{Completion, Config};
use event::Event;
use graph::Graphs;
use module::Modules;
use physical::Memory;
use pool::Pool;
use space::Space;
use stream::Stream;

/// A context: a device's primary one, or one made beside it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// How often a primary context is retained; 1 for others. Nothing works at 0.
    pub(crate) n_retained: u32,
    /// Why nothing works any more.
    pub(crate) lost: Option<Code>,
    /// The devices whose plain memory kernels may touch, a bit each.
    pub(crate) peers: u64,
}

/// The stand-in machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) config: Config,
    pub(crate) is_initialised: bool,
    pub(crate) account: Account,
    /// How work completes on streams made from now on, by thread where one has said so.
    pub(crate) completion: BTreeMap<u64, Completion>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    /// The primary context of each device.
    pub(crate) primaries: Vec<u64>,
    pub(crate) memory: Memory,
    pub(crate) space: Space,
    /// Plain memory whose free is enqueued, by start.
    being_freed: BTreeSet<u64>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    /// The streams on which work is pending.
    busy: BTreeSet<u64>,
    /// Default streams by context and thread; thread 0 is the legacy stream.
    pub(crate) default_streams: BTreeMap<(u64, u64), u64>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) captures: Captures,
    pub(crate) graphs: Graphs,
    pub(crate) modules: Modules,
    pub(crate) pools: BTreeMap<u64, Pool>,
    /// The default and the current pool of each device.
    pub(crate) device_pools: Vec<(u64, u64)>,
    /// The device's clock: it goes on when work runs.
    pub(crate) now_ns: u64,
    last_id: u64,
    callbacks: Vec<Callback>,
}

/// Where handles begin, and how far they are apart: they look like pointers and are none.
const FIRST_HANDLE: u64 = 0x5000_0000_0000;
const HANDLE_STEP: u64 = 64;

impl Machine {
    /// As the environment says.
    pub(crate) fn from_environment() -> Self {
        Self::new(Config::from_environment())
    }

    fn new(config: Config) -> Self {
        let mut machine = Self {
            account: Account::new(&config.failures),
            is_initialised: false,
            completion: BTreeMap::new(),
            contexts: BTreeMap::new(),
            primaries: Vec::new(),
            memory: Memory::new(config.n_devices, config.memory_bytes),
            space: Space::default(),
            being_freed: BTreeSet::new(),
            streams: BTreeMap::new(),
            busy: BTreeSet::new(),
            default_streams: BTreeMap::new(),
            events: BTreeMap::new(),
            captures: Captures::default(),
            graphs: Graphs::default(),
            modules: Modules::default(),
            pools: BTreeMap::new(),
            device_pools: Vec::new(),
            now_ns: 0,
            last_id: FIRST_HANDLE,
            callbacks: Vec::new(),
            config,
        };
        for device in 0..machine.config.n_devices {
            let context = machine.id();
            let made = Context { device, n_retained: 0, lost: None, peers: 0 };
            machine.contexts.insert(context, made);
            machine.primaries.push(context);
            let pool = machine.id();
            machine.pools.insert(pool, Pool::on(device));
            machine.device_pools.push((pool, pool));
        }
        machine
    }

    /// A handle that was never used.
    pub(crate) fn id(&mut self) -> u64 {
        self.last_id += HANDLE_STEP;
        self.last_id
    }

    /// Begins a call: counts it, fails it where a test planned that.
    pub(crate) fn begin(&mut self, name: &'static str) -> Result {
        const ALWAYS: [&str; 6] = [
            "cuInit",
            "cuDriverGetVersion",
            "cuGetErrorName",
            "cuGetErrorString",
            "cuGetProcAddress",
            "cuGetProcAddress_v2",
        ];
        self.account.count(name)?;
        if !self.is_initialised && !ALWAYS.contains(&name) {
            return Err(Code::NOT_INITIALIZED);
        }
        Ok(())
    }

    /// Callbacks that have become due; they are called without the lock.
    pub(crate) fn take_callbacks(&mut self) -> Vec<Callback> {
        std::mem::take(&mut self.callbacks)
    }

    pub(crate) fn call_back(&mut self, callback: Callback) {
        self.callbacks.push(callback);
    }

    /// The device with that ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<usize> {
        let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        if index < self.config.n_devices { Ok(index) } else { Err(Code::INVALID_DEVICE) }
    }

    /// A live context by its handle, 0 being the current one.
    pub(crate) fn context(&self, context: u64) -> Result<u64> {
        if context == 0 {
            return self.current();
        }
        self.is_live(context).then_some(context).ok_or(Code::INVALID_CONTEXT)?;
        self.check_lost(context)?;
        Ok(context)
    }

    /// Whether there is such a context.
    pub(crate) fn is_live(&self, context: u64) -> bool {
        self.contexts.get(&context).is_some_and(|context| context.n_retained > 0)
    }

    /// The calling thread's current context, which is not lost.
    pub(crate) fn current(&self) -> Result<u64> {
        let current = call::contexts(|stack| stack.last().copied()).unwrap_or(0);
        self.is_live(current).then_some(()).ok_or(Code::INVALID_CONTEXT)?;
        self.check_lost(current)?;
        Ok(current)
    }

    /// An error if the calling thread's current context is lost.
    pub(crate) fn check_current(&self) -> Result {
        match call::contexts(|stack| stack.last().copied()) {
            Some(current) => self.check_lost(current),
            None => Ok(()),
        }
    }

    /// The device of the current context.
    pub(crate) fn current_device(&self) -> Result<usize> {
        Ok(self.device_of(self.current()?))
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: u64) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// An error if the context is lost.
    pub(crate) fn check_lost(&self, context: u64) -> Result {
        match self.contexts.get(&context).and_then(|context| context.lost) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// A context dies of its work: nothing that is pending there runs any more, and every later
    /// call fails.
    pub(crate) fn lose(&mut self, context: u64, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.lost = Some(code);
        }
        self.drop_work(context);
    }

    /// What lived in a context goes with it.
    pub(crate) fn end_context(&mut self, context: u64) {
        self.drop_work(context);
        self.streams.retain(|_, stream| stream.context != context);
        self.default_streams.retain(|(of, _), _| *of != context);
        self.events.retain(|_, event| event.context != context);
        for start in self.space.allocated_in(context) {
            self.free(start);
        }
        self.modules.end_context(context);
        if let Some(context) = self.contexts.get_mut(&context) {
            (context.lost, context.n_retained, context.peers) = (None, 0, 0);
        }
    }
}
