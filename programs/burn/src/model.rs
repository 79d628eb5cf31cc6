//! A pre-norm transformer that maps a sequence of vectors to one of the same shape.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Tensor};

/// The sizes of a [`Transformer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Features of a position, in and out.
    pub(crate) n_features: usize,
    /// Blocks.
    pub(crate) layers: usize,
    /// Width of the residual stream, a multiple of `heads`.
    pub(crate) width: usize,
    /// Attention heads.
    pub(crate) heads: usize,
}

/// Attention and a feed-forward network, each on a normalised copy of the residual stream.
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_norm: LayerNorm,
    widen: Linear,
    narrow: Linear,
    heads: usize,
}

impl Block {
    fn new(sizes: Sizes, device: &Device) -> Self {
        let Sizes { width, heads, .. } = sizes;
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Self {
            attention_norm: LayerNormConfig::new(width).init(device),
            query: linear(width, width),
            key: linear(width, width),
            value: linear(width, width),
            output: linear(width, width),
            feed_norm: LayerNormConfig::new(width).init(device),
            widen: linear(width, 4 * width),
            narrow: linear(4 * width, width),
            heads,
        }
    }

    fn forward(&self, stream: Tensor<3>) -> Tensor<3> {
        let attended = self.attend(self.attention_norm.forward(stream.clone()));
        let stream = stream + attended;
        let wide = gelu(self.widen.forward(self.feed_norm.forward(stream.clone())));
        stream + self.narrow.forward(wide)
    }

    /// Written out, not burn's attention module, whose fused kernel would not keep the scores: with
    /// them, the memory grows with the square of the length, as in most training programs.
    fn attend(&self, input: Tensor<3>) -> Tensor<3> {
        let [batch, length, width] = input.dims();
        let head = width / self.heads;
        let split = |tensor: Tensor<3>| tensor.reshape([batch, length, self.heads, head]).swap_dims(1, 2);
        let query = split(self.query.forward(input.clone()));
        let key = split(self.key.forward(input.clone()));
        let value = split(self.value.forward(input));
        #[allow(clippy::cast_precision_loss, reason = "a head has far fewer than 2^52 features")]
        let scale = (head as f64).sqrt();
        let scores = query.matmul(key.swap_dims(2, 3)) / scale;
        let mixed = softmax(scores, 3).matmul(value);
        self.output.forward(mixed.swap_dims(1, 2).reshape([batch, length, width]))
    }
}

/// The whole model.
#[derive(Module, Debug)]
pub(crate) struct Transformer {
    embed: Linear,
    blocks: Vec<Block>,
    norm: LayerNorm,
    project: Linear,
}

impl Transformer {
    /// A model with new weights on `device`, which depend on the device's seed.
    pub(crate) fn new(sizes: Sizes, device: &Device) -> Self {
        Self {
            embed: LinearConfig::new(sizes.n_features, sizes.width).init(device),
            blocks: (0..sizes.layers).map(|_| Block::new(sizes, device)).collect(),
            norm: LayerNormConfig::new(sizes.width).init(device),
            project: LinearConfig::new(sizes.width, sizes.n_features).init(device),
        }
    }

    /// The mean squared error of what the model makes of `inputs` `[batch, length, n_features]`.
    pub(crate) fn loss(&self, inputs: Tensor<3>, targets: Tensor<3>) -> Tensor<1> {
        let mut stream = self.embed.forward(inputs);
        for block in &self.blocks {
            stream = block.forward(stream);
        }
        let difference = self.project.forward(self.norm.forward(stream)) - targets;
        (difference.clone() * difference).mean()
    }
}
