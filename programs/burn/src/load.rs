//! The program `load`: a safetensors file to a module on the first GPU, by burn or by glake.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::PathBuf;
use std::time::Instant;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use clap::Parser;
use glake_burn::{Checkpoint, Config, Origin};
use glake_burn_common::{Failure, Glake};

/// Loads a safetensors file of linear layers to the first GPU, and compares every byte.
#[derive(Debug, Parser)]
#[command(name = "glake-burn-train load")]
struct Args {
    /// By glake, or by burn.
    #[arg(long, value_enum, default_value_t = Glake::On)]
    glake: Glake,
    /// The file, which is written, and kept.
    #[arg(long)]
    file: PathBuf,
    /// Layers, each of `width` x `width` weights of 4 bytes.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    layers: u32,
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    width: u32,
    /// How often it is loaded.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    fn new(args: &Args, device: &Device) -> Self {
        let width = args.width as usize;
        let layer = || LinearConfig::new(width, width).with_bias(false).init(device);
        Self { layers: (0..args.layers).map(|_| layer()).collect() }
    }
}

pub(crate) fn run(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<(), Failure> {
    let args = Args::parse_from(arguments);
    let glake = match args.glake {
        Glake::On => Some(glake_burn::install(Config::from_env()?)?),
        Glake::Off => None,
    };
    let device = Device::cuda(0);
    let gpu = glake.map(|glake| glake.gpu(&device)).transpose()?;
    write(&args)?;
    let bytes = u64::from(args.layers) * args.layer_bytes();
    for round in 1..=args.rounds {
        let start = Instant::now();
        let model = match &gpu {
            Some(gpu) => {
                let mut model = Layers::new(&args, &device);
                let applied = gpu.load(&mut model, &Checkpoint::open(&args.file)?, Origin::Burn)?;
                if !applied.missing.is_empty() || !applied.unused.is_empty() {
                    return Err(format!("not all were loaded: {applied:?}").into());
                }
                model
            }
            None => load_by_burn(&args, &device)?,
        };
        device.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = bytes as f64 / 1e9 / seconds;
        println!("round {round}: {bytes} bytes in {seconds:.3} s, {rate:.2} GB/s");
        if round == args.rounds {
            verify(&args, model)?;
            println!("verified {bytes} bytes");
        }
    }
    Ok(())
}

/// As burn's stores do: each tensor's bytes are read, and handed over.
fn load_by_burn(args: &Args, device: &Device) -> Result<Layers, Failure> {
    let mut file = File::open(&args.file)?;
    let mut header_bytes = [0; 8];
    file.read_exact(&mut header_bytes)?;
    file.seek_relative(i64::try_from(u64::from_le_bytes(header_bytes))?)?;
    let width = args.width as usize;
    let mut model = Layers::new(args, device);
    for layer in &mut model.layers {
        let mut bytes = vec![0; 4 * width * width];
        file.read_exact(&mut bytes)?;
        let data = TensorData::from_bytes_vec(bytes, [width, width], DType::F32);
        layer.weight = Param::initialized(layer.weight.id, Tensor::from_data(data, device));
    }
    Ok(model)
}

impl Args {
    fn layer_bytes(&self) -> u64 {
        4 * u64::from(self.width) * u64::from(self.width)
    }

    /// A weight of a layer: small whole numbers, all layers different.
    fn words(&self, layer: u32) -> impl Iterator<Item = [u8; 4]> {
        let n = self.width * self.width;
        #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
        (0..n)
            .map(move |at| ((at.wrapping_mul(0x9e37_79b1) ^ layer.wrapping_mul(0x85eb_ca6b)) >> 8) as f32)
            .map(f32::to_le_bytes)
    }
}

fn write(args: &Args) -> io::Result<()> {
    let entries: Vec<_> = (0..args.layers)
        .map(|layer| {
            let (width, start) = (args.width, u64::from(layer) * args.layer_bytes());
            let end = start + args.layer_bytes();
            format!(
                r#""layers.{layer}.weight":{{"dtype":"F32","shape":[{width},{width}],"data_offsets":[{start},{end}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&args.file)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for layer in 0..args.layers {
        args.words(layer).try_for_each(|word| file.write_all(&word))?;
    }
    file.flush()
}

fn verify(args: &Args, model: Layers) -> Result<(), Failure> {
    for (layer, linear) in (0..).zip(model.layers) {
        let data = linear.weight.val().into_data();
        if !data.as_bytes().chunks(4).eq(args.words(layer)) {
            return Err(format!("layer {layer} is not what the file has").into());
        }
    }
    Ok(())
}
