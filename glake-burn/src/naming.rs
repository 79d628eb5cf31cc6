//! Which tensor of a checkpoint a module's parameter is: pure.

/// Who wrote a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// burn: names and shapes are those of the module.
    #[default]
    Burn,
    /// `PyTorch`: a linear layer's weight is transposed, which it becomes on the device again; a norm's `gamma` and
    /// `beta` are called `weight` and `bias`; names leave out an enum's variants.
    PyTorch,
}

/// How a tensor lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    AsInModule,
    Transposed,
}

impl Order {
    /// The shape in the file of a parameter of that shape.
    pub(crate) fn in_file(self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if self == Self::Transposed {
            shape.reverse();
        }
        shape
    }
}

/// Where a walk through a module is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    /// Names, outermost first, with the kind of what they are inside of.
    levels: Vec<(String, String)>,
}

impl Path {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.levels.push((name.to_owned(), container.to_owned()));
    }

    pub(crate) fn exit(&mut self) {
        self.levels.pop();
    }

    /// The parameter's name in the module.
    pub(crate) fn name(&self) -> String {
        self.joined(|_| true)
    }

    /// Its name in a checkpoint of that origin, and how it lies there, if it has `rank` dimensions.
    pub(crate) fn source(&self, origin: Origin, rank: usize) -> (String, Order) {
        if origin == Origin::Burn {
            return (self.name(), Order::AsInModule);
        }
        let name = self.joined(|container| !container.starts_with("Enum:"));
        let owner = self.levels.iter().rev().map(|(_, container)| container.as_str());
        let owner = owner.clone().find(|kind| kind.starts_with("Struct:") || kind.starts_with("Enum:"));
        let (folder, last) = name.rsplit_once('.').map_or(("", &*name), |(folder, last)| (folder, last));
        let renamed = match (owner, last) {
            (Some(kind), "gamma") if is_norm(kind) => "weight",
            (Some(kind), "beta") if is_norm(kind) => "bias",
            _ => last,
        };
        let is_transposed = owner == Some("Struct:Linear") && last == "weight" && rank == 2;
        let order = if is_transposed { Order::Transposed } else { Order::AsInModule };
        let name = if folder.is_empty() { renamed.to_owned() } else { format!("{folder}.{renamed}") };
        (name, order)
    }

    fn joined(&self, keep: impl Fn(&str) -> bool) -> String {
        let kept = self.levels.iter().filter(|(_, container)| keep(container)).map(|(name, _)| name.as_str());
        kept.collect::<Vec<_>>().join(".")
    }
}

/// burn's layers that normalise, as its module trait names them.
fn is_norm(kind: &str) -> bool {
    ["BatchNorm", "LayerNorm", "GroupNorm", "RmsNorm", "InstanceNorm"]
        .iter()
        .any(|norm| kind.strip_prefix("Struct:") == Some(norm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(levels: &[(&str, &str)]) -> Path {
        let mut path = Path::default();
        for (name, container) in levels {
            path.enter(name, container);
        }
        path
    }

    #[test]
    fn burns_own_names_are_the_modules() {
        let mut path = path(&[("blocks", "Struct:Model"), ("3", "Vec"), ("norm", "Struct:Block")]);
        path.enter("gamma", "Struct:LayerNorm");
        assert_eq!(path.source(Origin::Burn, 1), ("blocks.3.norm.gamma".to_owned(), Order::AsInModule));
        path.exit();
        assert_eq!(path.name(), "blocks.3.norm");
    }

    #[test]
    fn pytorchs_norms_have_weight_and_bias() {
        for (burn, pytorch) in [("gamma", "norm.weight"), ("beta", "norm.bias"), ("epsilon", "norm.epsilon")]
        {
            let path = path(&[("norm", "Struct:Model"), (burn, "Struct:RmsNorm")]);
            assert_eq!(path.source(Origin::PyTorch, 1), (pytorch.to_owned(), Order::AsInModule));
        }
        let other = path(&[("x", "Struct:Model"), ("gamma", "Struct:MyLayer")]);
        assert_eq!(other.source(Origin::PyTorch, 1).0, "x.gamma");
        assert_eq!(path(&[("gamma", "Struct:LayerNorm")]).source(Origin::PyTorch, 1).0, "weight");
    }

    #[test]
    fn pytorchs_linear_weights_are_transposed() {
        let weight = path(&[("head", "Struct:Model"), ("weight", "Struct:Linear")]);
        let (name, order) = weight.source(Origin::PyTorch, 2);
        assert_eq!((&*name, order.in_file(&[3, 5])), ("head.weight", vec![5, 3]));
        let bias = path(&[("head", "Struct:Model"), ("bias", "Struct:Linear")]);
        assert_eq!(bias.source(Origin::PyTorch, 1).1, Order::AsInModule);
        let table = path(&[("embed", "Struct:Model"), ("weight", "Struct:Embedding")]);
        assert_eq!(table.source(Origin::PyTorch, 2).1.in_file(&[3, 5]), [3, 5]);
    }

    #[test]
    fn pytorch_has_no_variants() {
        let path = path(&[("conv", "Struct:Model"), ("Base", "Enum:Conv"), ("weight", "Struct:Conv2d")]);
        assert_eq!(path.source(Origin::PyTorch, 4).0, "conv.weight");
        assert_eq!(path.source(Origin::Burn, 4).0, "conv.Base.weight");
    }
}
