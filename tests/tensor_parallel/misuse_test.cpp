// SPDX-License-Identifier: Apache-2.0
// Refusals of the tensor parallel layers, with their texts.
#include "tests/tensor_parallel/support.hpp"
//
#include "accelerate/tensor_parallel/dropout.hpp"

using namespace tensor_parallel_testing;
using accelerate::comm::run_threads;

TEST_CASE("sizes that are not divisible by the ranks are refused with both numbers") {
  run_threads(2, [](const Group& group) {
    CHECK(refused([&] { ColumnParallelLinear(4, 7, group); }) ==
          "column_parallel_linear: out_features is 7, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { RowParallelLinear(5, 4, group); }) ==
          "row_parallel_linear: in_features is 5, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { VocabParallelEmbedding(11, 4, group); }) ==
          "vocab_parallel_embedding: num_embeddings is 11, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { ColumnParallelConv2d(torch::nn::Conv2dOptions(3, 5, 3), group); }) ==
          "column_parallel_conv2d: out_channels is 5, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { RowParallelConv2d(torch::nn::Conv2dOptions(3, 4, 3), group); }) ==
          "row_parallel_conv2d: in_channels is 3, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(9, 3), group); }) ==
          "parallel_multihead_attention: num_heads is 3, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] { ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(9, 2), group); }) ==
          "parallel_multihead_attention: embed_dim is 9, must be divisible by num_heads 2");
    CHECK(refused([&] {
            scatter_to_group(torch::ones({2, 3}), -1, group);
          }) == "scatter_to_group: the size of dimension 1 is 3, must be divisible by the 2 ranks of the group");
    CHECK(refused([&] {
            reduce_scatter_to_group(torch::ones({3, 2}), 0, group);
          }) == "reduce_scatter_to_group: the size of dimension 0 is 3, must be divisible by the 2 ranks of the group");
    RowParallelLinear row(RowParallelLinearOptions(4, 4).sequence_dim(0), group);
    CHECK(refused([&] {
            row(torch::ones({3, 2, 2}));
          }) ==
          "row_parallel_linear: the sequence in dimension 0 of the input is 3, must be divisible by the 2 ranks of the "
          "group");
  });
}

TEST_CASE("inputs of another shape are refused before any collective") {
  run_threads(2, [](const Group& group) {
    ColumnParallelLinear column(6, 8, group);
    RowParallelLinear row(8, 6, group);
    CHECK(refused([&] {
            column(torch::ones({2, 5}));
          }) == "column_parallel_linear: the input is [2, 5], its last dimension must be 6");
    CHECK(refused([&] { column(torch::ones({})); }) ==
          "column_parallel_linear: the input is [], its last dimension must be 6");
    CHECK(refused([&] {
            row(torch::ones({2, 8}));
          }) == "row_parallel_linear: the input is [2, 8], its last dimension must be 4");
    ColumnParallelLinear sequence(ColumnParallelLinearOptions(6, 8).sequence_dim(1), group);
    CHECK(
        refused([&] {
          sequence(torch::ones({2, 6}));
        }) ==
        "column_parallel_linear: sequence_dim is 1, the last dimension of the input [2, 6]; it must be one before the "
        "features");
    CHECK(refused([&] { sequence(torch::ones({6})); }) ==
          "column_parallel_linear: the tensor is [6], it has no dimension 1");
    ColumnParallelConv2d conv(torch::nn::Conv2dOptions(3, 4, 3), group);
    CHECK(refused([&] {
            conv(torch::ones({2, 4, 5, 5}));
          }) == "column_parallel_conv2d: the input is [2, 4, 5, 5], must be [N, 3, H, W] or [3, H, W]");
    ParallelMultiheadAttention attention(ParallelMultiheadAttentionOptions(8, 2), group);
    const at::Tensor x = torch::ones({3, 1, 8});
    CHECK(refused([&] {
            attention(x, torch::ones({3, 1, 6}), x);
          }) == "parallel_multihead_attention: key is [3, 1, 6], must be [sequence, batch, 8]");
    VocabParallelEmbedding embedding(12, 4, group);
    CHECK(refused([&] {
            embedding(torch::tensor({3, 12}));
          }) == "vocab_parallel_embedding: an index is 12, must be from 0 to 11");
    CHECK(refused([&] { gather_from_group(torch::ones({2}), 1, group); }) ==
          "gather_from_group: the tensor is [2], it has no dimension 1");
  });
}

TEST_CASE("options without a counterpart are refused") {
  run_threads(2, [](const Group& group) {
    using torch::nn::Conv2dOptions;
    CHECK(refused([&] { ColumnParallelConv2d(Conv2dOptions(4, 4, 3).groups(2), group); }) ==
          "column_parallel_conv2d: groups is 2, must be 1");
    CHECK(refused([&] { RowParallelConv2d(Conv2dOptions(4, 4, 3).padding_mode(torch::kCircular), group); }) ==
          "row_parallel_conv2d: padding_mode must be zeros");
    const torch::nn::EmbeddingImpl normed(torch::nn::EmbeddingOptions(4, 2).max_norm(1));
    CHECK(refused([&] { VocabParallelEmbeddingImpl(normed, group); }) ==
          "vocab_parallel_embedding: the layer has max_norm, which is not supported; remove it");
    const torch::nn::MultiheadAttentionImpl wide(torch::nn::MultiheadAttentionOptions(4, 2).kdim(6));
    CHECK(refused([&] { ParallelMultiheadAttentionImpl(wide, group); }) ==
          "parallel_multihead_attention: the layer has kdim, vdim, add_bias_kv or add_zero_attn, which are not "
          "supported");
    CHECK(refused([&] { ParallelDropout(1.5, group); }) == "parallel_dropout: p is 1.5, must be from 0 to 1");
  });
}

TEST_CASE("losses with other shapes, dtypes and classes are refused") {
  run_threads(2, [](const Group& group) {
    const at::Tensor logits = torch::ones({2, 4});
    const auto loss = [&](const at::Tensor& target, const VocabParallelCrossEntropyOptions& options = {}) {
      return refused([&] { vocab_parallel_cross_entropy(logits, target, group, options); });
    };
    CHECK(loss(torch::tensor({1, 8})) == "vocab_parallel_cross_entropy: an index is 8, must be from 0 to 7");
    CHECK(loss(torch::tensor({1})) ==
          "vocab_parallel_cross_entropy: target is [1] and the logits [2, 4]; target must have one class for each row");
    CHECK(loss(torch::ones({2})) == "vocab_parallel_cross_entropy: target is Float, must be Long");
    CHECK(loss(torch::tensor({1, 2}), {.label_smoothing = 2}) ==
          "vocab_parallel_cross_entropy: label_smoothing is 2, must be from 0 to 1");
    CHECK(
        refused([&] {
          vocab_parallel_linear_cross_entropy(torch::ones({2, 3}), torch::ones({4, 5}), torch::tensor({1, 2}), group);
        }) ==
        "vocab_parallel_cross_entropy: x is [2, 3] and weight [4, 5]; the last dimension of both must be the features");
  });
}

TEST_CASE("second derivatives of split layers are refused") {
  run_threads(2, [](const Group& group) {
    ColumnParallelLinear column(4, 4, group);
    const at::Tensor x = torch::ones({2, 4}).requires_grad_(true);
    CHECK(refused([&] { torch::autograd::grad({column(x).sum()}, {x}, {}, true, true); }) ==
          "tensor_parallel: backward was called with create_graph, but split linear layers have no second derivative");
  });
}

TEST_CASE("whole state of another model is refused without changes") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] { return SplitMlp(group); });
    const StateDict before = whole_state_dict(*split);
    const auto load = [&](const StateDict& state) { return refused([&] { load_whole_state_dict(*split, state); }); };
    StateDict state;
    CHECK(load(state) == "load_whole_state_dict: up.weight is missing in the state dict");
    for (const auto& item : before) state.insert(item.key(), torch::zeros_like(item.value()));
    state["down.weight"] = torch::zeros({5, 4});
    CHECK(load(state) == "load_whole_state_dict: down.weight is [5, 4] in the state dict, [5, 8] here");
    state["down.weight"] = torch::zeros({5, 8});
    state.insert("other", torch::zeros({1}));
    CHECK(load(state) == "load_whole_state_dict: other of the state dict is not in the model");
    const StateDict after = whole_state_dict(*split);
    for (const auto& item : before) CHECK(torch::equal(after[item.key()], item.value()));
  });
}

TEST_CASE("an exception between layers of all ranks leaves the group usable") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] { return SplitMlp(group); });
    const at::Tensor x = numbers({2, 6}, 1);
    CHECK_THROWS_AS((split->up(x), throw std::runtime_error("stop")), std::runtime_error);
    CHECK_THROWS_AS(split(x.to(at::kFloat)), c10::Error);
    CHECK_NOTHROW(split(x).sum().backward());
  });
}

TEST_CASE("a rank that skips a layer is reported by the others") {
  CHECK_THROWS_WITH_AS(run_threads(
                           2,
                           [](const Group& group) {
                             auto split = seeded([&] { return SplitMlp(group); });
                             if (group.rank() == 0) split(numbers({2, 6}, 1));
                           },
                           std::chrono::milliseconds(500)),
                       doctest::Contains("tensor_parallel: the parts of a layer are not put together"),
                       accelerate::Error);
}
