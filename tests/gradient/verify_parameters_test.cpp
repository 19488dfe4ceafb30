// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/verify_parameters.hpp"

#include "support.hpp"

using namespace gradient_testing;
using accelerate::Error;
using accelerate::ErrorKind;
using accelerate::comm::run_threads;
using accelerate::gradient::describe_tensor;
using accelerate::gradient::verify_parameters;

namespace {

NamedTensor zeros(const char* name, std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat,
                  bool trained = true) {
  return {name, torch::zeros(shape, torch::dtype(dtype).requires_grad(trained))};
}

struct Row {
  const char* what;
  std::vector<NamedTensor> rank0;
  std::vector<NamedTensor> rank2;  // ranks 1 and 3 have rank0's
  const char* difference;
};

}  // namespace

TEST_CASE("every rank reports the first difference with both descriptions and the rank") {
  const std::vector<Row> rows{
      {"a shape",
       {zeros("a", {2}), zeros("b", {2, 3})},
       {zeros("a", {2}), zeros("b", {3, 3})},
       "parameter 1 of the model is b [2, 3] Float on rank 0, b [3, 3] Float on rank 2"},
      {"a name",
       {zeros("a", {2})},
       {zeros("z", {2})},
       "parameter 0 of the model is a [2] Float on rank 0, z [2] Float on rank 2"},
      {"a dtype",
       {zeros("a", {2})},
       {zeros("a", {2}, at::kBFloat16)},
       "parameter 0 of the model is a [2] Float on rank 0, a [2] BFloat16 on rank 2"},
      {"frozen on one",
       {zeros("a", {2})},
       {zeros("a", {2}, at::kFloat, false)},
       "parameter 0 of the model is a [2] Float on rank 0, a [2] Float, frozen on rank 2"},
      {"another layout",
       {zeros("a", {2, 3})},
       {{"a", zeros("a", {3, 2}).tensor.detach().t().requires_grad_()}},
       "parameter 0 of the model is a [2, 3] Float on rank 0, a [2, 3] Float, strides [1, 2] on rank 2"},
      {"one too few",
       {zeros("a", {2}), zeros("b", {})},
       {zeros("a", {2})},
       "parameter 1 of the model is b [] Float on rank 0, missing on rank 2"},
      {"one too many",
       {zeros("a", {2})},
       {zeros("a", {2}), zeros("b", {4})},
       "parameter 1 of the model is missing on rank 0, b [4] Float on rank 2"},
      {"none", {zeros("a", {2})}, {}, "parameter 0 of the model is a [2] Float on rank 0, missing on rank 2"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    std::atomic<int> refusals = 0;
    run_threads(4, [&](const Group& group) {
      try {
        verify_parameters(group, "parameter", group.rank() == 2 ? row.rank2 : row.rank0);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        const std::string text = error.what();
        CHECK(text == accelerate::base::prefix(group.place()) + "prepare: " + row.difference +
                          "; build the same model on every rank");
        ++refusals;
      }
    });
    CHECK(refusals == 4);
  }
}

TEST_CASE("different values and empty lists are accepted") {
  run_threads(2, [](const Group& group) {
    verify_parameters(group, "buffer", {{"mean", torch::full({3}, static_cast<double>(group.rank()))}});
    verify_parameters(group, "parameter", {});
  });
}

TEST_CASE("a buffer's description never contains frozen") {
  CHECK(describe_tensor(zeros("mean", {3}, at::kFloat, false), "buffer") == "mean [3] Float");
  CHECK(describe_tensor(zeros("w", {}, at::kLong, false), "parameter") == "w [] Long, frozen");
}
