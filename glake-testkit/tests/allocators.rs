//! The laws of allocators, held by the model of `PyTorch`'s allocator and by each adaptor over it.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::io;
use std::sync::Arc;

use glake_core::adapt::{Limited, Locked, Recorded, Tagged};
use glake_core::alloc::Allocator;
use glake_core::driver::StreamOrder;
use glake_core::sim::{Completion, SimDriver};
use glake_core::trace::Writer;
use glake_core::units::DeviceId;
use glake_testkit::caching::Caching;
use glake_testkit::program::Subject;
use glake_testkit::program::streams::Machine;
use glake_testkit::spy::Spy;
use glake_testkit::{allocator_laws, stream_laws};

fn over(adapt: fn(Caching) -> Box<dyn Allocator>) -> Subject {
    let spy = Spy::new(Arc::new(SimDriver::h200(1)));
    let stream = spy.create_stream(DeviceId(0)).unwrap();
    let caching = Caching::new(spy.clone(), DeviceId(0), u64::MAX);
    Subject { allocator: adapt(caching), stream, spy: Some(spy) }
}

fn caching() -> Subject {
    over(|caching| Box::new(caching))
}

fn locked() -> Subject {
    over(|caching| Box::new(Arc::new(Locked::new(caching))))
}

fn limited() -> Subject {
    over(|caching| Box::new(Limited::new(caching, u64::MAX)))
}

fn recorded() -> Subject {
    over(|caching| Box::new(Recorded::new(caching, Writer::new(io::sink()), Box::new(|| 0))))
}

fn tagged() -> Subject {
    over(|caching| {
        let mut tagged = Tagged::new(caching);
        tagged.set_tag("weights");
        Box::new(tagged)
    })
}

fn stacked() -> Subject {
    over(|caching| Box::new(Locked::new(Limited::new(Tagged::new(caching), u64::MAX))))
}

fn on_streams(completion: Completion, adapt: fn(Caching) -> Box<dyn Allocator>) -> Machine {
    Machine::new(completion, |spy| adapt(Caching::new(spy, DeviceId(0), u64::MAX)))
}

fn caching_on_streams(completion: Completion) -> Machine {
    on_streams(completion, |caching| Box::new(caching))
}

fn stacked_on_streams(completion: Completion) -> Machine {
    on_streams(completion, |caching| {
        let recorded = Recorded::new(caching, Writer::new(io::sink()), Box::new(|| 0));
        Box::new(Arc::new(Locked::new(Limited::new(Tagged::new(recorded), u64::MAX))))
    })
}

stream_laws!(caching_stream_laws, caching_on_streams);
stream_laws!(stacked_stream_laws, stacked_on_streams);
allocator_laws!(caching_laws, caching);
allocator_laws!(locked_laws, locked);
allocator_laws!(limited_laws, limited);
allocator_laws!(recorded_laws, recorded);
allocator_laws!(tagged_laws, tagged);
allocator_laws!(stacked_laws, stacked);
