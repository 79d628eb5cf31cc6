//! The picture: bytes over time.

use std::error::Error;
use std::path::Path;

use glake_testkit::replay::{Plan, Sample};
use plotters::prelude::*;

use crate::figures::Figures;

const GIB: f64 = 1_073_741_824.0;

type Line = (&'static str, RGBColor, fn(&Sample) -> u64);

/// Draws requested, allocated and reserved bytes over the trace's time.
#[allow(clippy::cast_precision_loss, reason = "a picture")]
pub fn draw(path: &Path, plan: &Plan, figures: &Figures, samples: &[Sample]) -> Result<(), Box<dyn Error>> {
    let time = |sample: &Sample| plan.at_us[sample.step] as f64 / 1e6;
    let start = samples.first().map_or(0.0, time);
    let end = samples.last().map_or(1.0, time).max(start + 1e-6);
    let top = 1.08 * figures.peak_physical_bytes.max(figures.peak_requested_bytes) as f64 / GIB;
    let title = format!(
        "{}: {} ({}), {:.1} % of {:.2} GiB used at peak",
        figures.trace,
        figures.policy,
        figures.mode,
        100.0 * figures.utilization,
        figures.peak_physical_bytes as f64 / GIB
    );
    let root = SVGBackend::new(path, (1100, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(start..end, 0.0..top.max(1e-3))?;
    chart.configure_mesh().x_desc("seconds").y_desc("GiB").light_line_style(BLACK.mix(0.05)).draw()?;
    let lines: [Line; 3] = [
        ("reserved", RGBColor(200, 60, 50), |sample| sample.reserved_bytes),
        ("allocated", RGBColor(230, 160, 30), |sample| sample.allocated_bytes),
        ("requested", RGBColor(40, 100, 180), |sample| sample.requested_bytes),
    ];
    for (name, color, bytes) in lines {
        let points = samples.iter().map(|sample| (time(sample), bytes(sample) as f64 / GIB));
        chart
            .draw_series(LineSeries::new(points, color))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    root.present()?;
    Ok(())
}
