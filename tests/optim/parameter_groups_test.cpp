// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/parameter_groups.hpp"

#include "tests/optim/steps.hpp"

using accelerate::optim::check_groups;
using namespace optim_testing;

TEST_CASE("a parameter in two groups, or twice in one, is refused, although torch::optim accepts it") {
  const Parameters list = parameters();
  torch::optim::SGD two({list[0], list[1]}, 0.1);
  check_groups(two, {}, "prepare");
  two.add_param_group(torch::optim::OptimizerParamGroup({list[2], list[1]}));
  CHECK_THROWS_WITH(
      check_groups(two, {}, "prepare"),
      "prepare: parameter 1 of the optimizer's group 1 is parameter 1 of its group 0 too (shape [3]): it "
      "would be stepped on twice; list it once. parameters() of a module names shared weights as often as "
      "they are registered");
  torch::optim::SGD one({list[0], list[2], list[0]}, 0.1);
  CHECK_THROWS_WITH(check_groups(one, {.rank = 1, .world_size = 2, .host = "b"}, "optimizer.step"),
                    "[rank 1 of 2, b] optimizer.step: parameter 2 of the optimizer's group 0 is parameter 0 of its "
                    "group 0 too (shape [5, 3]): it would be stepped on twice; list it once. parameters() of a module "
                    "names shared weights as often as they are registered");
}

TEST_CASE("parameters_of() returns all groups in order, and keys_of() their state keys") {
  const Parameters list = parameters();
  torch::optim::SGD optimizer({list[2]}, 0.1);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({list[0], list[1]}));
  const auto all = accelerate::optim::parameters_of(optimizer);
  REQUIRE(all.size() == 3);
  CHECK(all[0].is_same(list[2]));
  CHECK(all[1].is_same(list[0]));
  CHECK(all[2].is_same(list[1]));
  const auto keys = accelerate::optim::keys_of({list[0], list[2], list[0]});
  CHECK(keys.size() == 2);
  CHECK(keys.contains(list[2].unsafeGetTensorImpl()));
  CHECK_FALSE(keys.contains(list[1].unsafeGetTensorImpl()));
}
