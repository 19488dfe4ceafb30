// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/outputs.hpp"

#include "tests/testing.hpp"
//
#include <torch/csrc/jit/api/module.h>

using accelerate::precision::to_output;

TEST_CASE("float16 and bfloat16 become the output dtype, all other tensors are returned as they are") {
  for (const auto low : {at::kHalf, at::kBFloat16}) {
    const auto tensor = torch::ones({2}).to(low);
    CHECK((to_output(tensor, at::kFloat).scalar_type() == at::kFloat));
    CHECK((to_output(tensor, at::kDouble).scalar_type() == at::kDouble));
  }
  for (const auto other : {at::kFloat, at::kDouble, at::kLong, at::kBool, at::kComplexFloat}) {
    const auto tensor = torch::ones({2}).to(other);
    CHECK(to_output(tensor, at::kFloat).is_same(tensor));
  }
  CHECK_FALSE(to_output(at::Tensor(), at::kFloat).defined());
}

TEST_CASE("gradients pass the conversion back in the dtype of the output") {
  const auto low = torch::ones({2}, at::kBFloat16).requires_grad_();
  to_output(low, at::kFloat).sum().backward();
  CHECK((low.grad().scalar_type() == at::kBFloat16));
}

TEST_CASE("TorchScript results are converted at any depth, and their structure stays") {
  torch::jit::Module script("script");
  script.define(R"(
    def forward(self, x):
      return (x, [x, x], {"x": x, "more": x}, 3, "word", (x, None))
  )");
  const auto x = torch::ones({2}, at::kHalf);
  const auto result = to_output(script.forward({x}), at::kFloat);
  const auto& elements = result.toTupleRef().elements();
  CHECK((elements[0].toTensor().scalar_type() == at::kFloat));
  CHECK((elements[1].toTensorVector().at(1).scalar_type() == at::kFloat));
  CHECK((elements[2].toGenericDict().at("more").toTensor().scalar_type() == at::kFloat));
  CHECK(elements[3].toInt() == 3);
  CHECK(elements[4].toStringRef() == "word");
  CHECK((elements[5].toTupleRef().elements()[0].toTensor().scalar_type() == at::kFloat));
  CHECK(elements[5].toTupleRef().elements()[1].isNone());
  CHECK((x.scalar_type() == at::kHalf));
}

TEST_CASE("a list that the script keeps is not changed") {
  auto list = c10::List<at::Tensor>({torch::ones({1}, at::kHalf)});
  const auto converted = to_output(c10::IValue(list), at::kFloat);
  CHECK((list.get(0).scalar_type() == at::kHalf));
  CHECK((converted.toTensorVector().at(0).scalar_type() == at::kFloat));
}
