use super::*;

const PAGE: u64 = 2 << 20;

fn llama() -> ModelShape {
    ModelShape::grouped(32, 8, 128, Element::Bf16)
}

#[test]
fn a_page_holds_what_was_measured() {
    let tokens =
        |layers, arrangement| Layout::new(&llama(), PAGE, layers, arrangement).unwrap().block_tokens();
    assert_eq!([32, 8, 4, 1].map(|layers| tokens(layers, Arrangement::Together)), [16, 64, 128, 512]);
    assert_eq!([32, 8, 4, 1].map(|layers| tokens(layers, Arrangement::Apart)), [32, 128, 256, 1024]);
}

#[test]
fn places_are_disjoint_and_fill_the_page() {
    for arrangement in [Arrangement::Together, Arrangement::Apart] {
        for layers in [1, 3, 4, 32] {
            let layout = Layout::new(&llama(), PAGE, layers, arrangement).unwrap();
            let mut vectors = Vec::new();
            for layer in 0..32 {
                let Place { key, value, .. } = layout.place(layer).unwrap();
                vectors.extend([key, value]);
            }
            vectors.sort_unstable();
            vectors.dedup();
            assert_eq!(vectors.len(), 64);
            for pair in vectors.windows(2) {
                assert!(pair[0].0 != pair[1].0 || pair[0].1 + 2048 <= pair[1].1, "{pair:?}");
            }
            let last = vectors.last().unwrap();
            assert!(last.0 < layout.pages_per_block() && last.1 + 2048 <= layout.token_bytes);
            assert_eq!(layout.place(32), None);
        }
    }
}

#[test]
fn values_follow_keys_and_scales_follow_both() {
    let shape = ModelShape::grouped(2, 8, 128, Element::Int8);
    let layout = Layout::new(&shape, PAGE, 2, Arrangement::Together).unwrap();
    let Place { key, value, key_scale, value_scale } = layout.place(1).unwrap();
    let record = 2 * 8 * 128 + 2 * 8 * 4;
    assert_eq!([key, value], [(0, record), (0, record + 1024)]);
    assert_eq!([key_scale, value_scale], [(0, record + 2048), (0, record + 2048 + 32)]);
    assert_eq!(shape.token_bytes(), Some(2 * record));
}

#[test]
fn steps_are_equal_where_tokens_do_not_divide_a_page() {
    // 28 layers: 114,688 bytes a token, 18.3 in a page.
    let layout =
        Layout::new(&ModelShape::grouped(28, 8, 128, Element::Bf16), PAGE, 28, Arrangement::Together)
            .unwrap();
    assert_eq!((layout.block_tokens(), layout.token_bytes), (16, 131_072));
    assert!((layout.padding() - 0.125).abs() < 1e-9, "{}", layout.padding());
}

#[test]
fn latent_attention_has_one_vector() {
    // DeepSeek-V3: 512 and 64 dimensions in 61 layers.
    let layout =
        Layout::new(&ModelShape::latent(61, 512, 64, Element::Bf16), PAGE, 61, Arrangement::Apart).unwrap();
    assert_eq!((layout.pages_per_block(), layout.block_tokens()), (1, 16));
    let place = layout.place(60).unwrap();
    assert_eq!(place.key, place.value);
    assert_eq!(layout.block_strides().head, 576);
}

#[test]
fn strides_that_wrap_in_32_bits_are_refused() {
    let layout = Layout::new(&llama(), PAGE, 32, Arrangement::Together).unwrap();
    let strides = layout.strides(65_536).unwrap();
    assert_eq!([strides.batch, strides.token, strides.head], [4 << 30, 65_536, 128]);
    assert_eq!(strides.to_u32(), Err(LayoutError::StrideWraps { stride: 4 << 30 }));
    let strides = layout.strides(65_520).unwrap();
    assert_eq!(strides.to_u32(), Ok([4_293_918_720, 65_536, 128]));
    assert_eq!(layout.strides(0), Err(LayoutError::Empty));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let new = |shape, page, layers| Layout::new(&shape, page, layers, Arrangement::Together);
    let token_bytes = 32 * 4096;
    assert_eq!(
        new(llama(), token_bytes - 1, 32),
        Err(LayoutError::PageTooSmall { needed_bytes: token_bytes, page_bytes: token_bytes - 1 })
    );
    assert!(new(llama(), token_bytes, 32).is_ok());
    assert_eq!(new(llama(), PAGE, 0), Err(LayoutError::Layers { layers_per_page: 0, n_layers: 32 }));
    assert_eq!(new(llama(), PAGE, 33), Err(LayoutError::Layers { layers_per_page: 33, n_layers: 32 }));
    for empty in [
        ModelShape::grouped(0, 8, 128, Element::F16),
        ModelShape::grouped(1, 0, 128, Element::F16),
        ModelShape::grouped(1, 8, 0, Element::F16),
        ModelShape::latent(1, 0, 64, Element::F16),
        llama().window(0),
    ] {
        assert_eq!(new(empty, PAGE, 1), Err(LayoutError::Empty));
    }
    let huge = ModelShape::grouped(u32::MAX, u32::MAX, u32::MAX, Element::F32);
    assert_eq!(new(huge, PAGE, 1), Err(LayoutError::TooLarge));
}

#[test]
fn a_window_slides_past_blocks() {
    let layout = Layout::new(&llama().window(32), PAGE, 32, Arrangement::Together).unwrap();
    // Token 47 sees 16 to 47.
    assert_eq!([0, 31, 46, 47, 62, 63].map(|tokens| layout.first_block_read(tokens)), [0, 0, 0, 1, 1, 2]);
    let layout = Layout::new(&llama(), PAGE, 32, Arrangement::Together).unwrap();
    assert_eq!(layout.first_block_read(1000), 0);
}

#[test]
fn waste_counts_ends_and_padding() {
    let layout = Layout::new(&llama(), PAGE, 32, Arrangement::Together).unwrap();
    assert!((layout.waste([1, 16, 17]) - (1.0 - 34.0 / 64.0)).abs() < 1e-9);
    assert!(layout.waste([]).abs() < 1e-9);
}
