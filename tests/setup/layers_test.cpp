// SPDX-License-Identifier: Apache-2.0
#include "tests/setup/layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

namespace {

/// A repository with empty accelerate/ and launch/, gone with the object.
class TemporaryTree {
 public:
  TemporaryTree() {
    fs::remove_all(root);
    fs::create_directories(root / "accelerate");
    fs::create_directories(root / "launch");
  }
  ~TemporaryTree() {
    std::error_code ignored;
    fs::remove_all(root, ignored);
  }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  const fs::path root = fs::path(TEST_BINARY_DIR) / "layers_test_tree";
};

}  // namespace

TEST_CASE("every include in accelerate and launch is one that the table of layers allows") {
  CHECK(layers::violations(TEST_SOURCE_DIR) == Lines{});
}

TEST_CASE("includes that the table forbids are named with file, both rooms and header") {
  const TemporaryTree tree;
  tree.write("accelerate/base/log.cpp", "#include <torch/types.h>\n#include <fmt/format.h>\n");
  tree.write("accelerate/comm/group.hpp", "#include <ATen/core/Tensor.h>\n#include \"accelerate/base/error.hpp\"\n");
  tree.write("accelerate/data/loader.cpp", "  #  include \"accelerate/comm/group.hpp\"  // why\n");
  tree.write("accelerate/env/deep/er.hpp", "#include \"accelerate/comm/group.hpp\"\n");
  tree.write("accelerate/gradient/engine.cpp", "#include <accelerate/optim/fused_step.hpp>\n");
  tree.write("accelerate/accelerator.hpp",
             "#include \"accelerate/prepared/model.hpp\"\n#include \"launch/run/spawn.hpp\"\n");
  tree.write("accelerate/data/facade.cpp", "#include \"accelerate/accelerator.hpp\"\n");
  tree.write("accelerate/comm/mpi/channel.cpp", "#include \"accelerate/comm/threads/backend.hpp\"\n");
  tree.write("accelerate/comm/core/worker.hpp", "#include \"accelerate/comm/group.hpp\"\n");
  tree.write("accelerate/tree/tree.cpp", "#include \"accelerate/comm/core/reduce_op.hpp\"\n");
  tree.write("launch/plan/plan.cpp", "#include \"accelerate/comm/group.hpp\"\n#include <c10/util/Exception.h>\n");
  CHECK(layers::violations(tree.root) ==
        Lines{"accelerate/accelerator.hpp: facade may not include launch/run (launch/run/spawn.hpp)",
              "accelerate/base/log.cpp: base may not include LibTorch (torch/types.h)",
              "accelerate/comm/core/worker.hpp: comm/core may not include comm (accelerate/comm/group.hpp)",
              "accelerate/comm/mpi/channel.cpp: comm/mpi may not include comm/threads "
              "(accelerate/comm/threads/backend.hpp)",
              "accelerate/data/facade.cpp: data may not include facade (accelerate/accelerator.hpp)",
              "accelerate/data/loader.cpp: data may not include comm (accelerate/comm/group.hpp)",
              "accelerate/env/deep/er.hpp: env may not include comm (accelerate/comm/group.hpp)",
              "accelerate/gradient/engine.cpp: gradient may not include optim (accelerate/optim/fused_step.hpp)",
              "accelerate/tree/tree.cpp: tree may not include comm/core (accelerate/comm/core/reduce_op.hpp)",
              "launch/plan/plan.cpp: launch/plan may not include LibTorch (c10/util/Exception.h)",
              "launch/plan/plan.cpp: launch/plan may not include comm (accelerate/comm/group.hpp)"});
}

TEST_CASE("a room that the table does not know is refused") {
  const TemporaryTree tree;
  tree.write("accelerate/attic/box.hpp", "#include <vector>\n");
  CHECK(layers::violations(tree.root) ==
        Lines{"accelerate/attic/box.hpp: the room 'attic' is not in the table of layers"});
}

TEST_CASE("rooms never include one another") {
  const layers::Names rooms{"data", "gradient", "optim", "checkpoint", "tracking", "nn", "profile", "job"};
  for (const auto& from : rooms) {
    for (const auto& to : rooms) CHECK_FALSE(layers::table().at(from).contains(to));
  }
}

TEST_CASE("the table has no circle: whoever includes another place is not included by it") {
  std::map<std::string, int> height;  // a place stands above all that it may include
  for (size_t round = 0; round < layers::table().size(); ++round) {
    for (const auto& [place, allowed] : layers::table()) {
      for (const auto& below : allowed) height[place] = std::max(height[place], height[below] + 1);
    }
  }
  for (const auto& [place, allowed] : layers::table()) {
    for (const auto& below : allowed) CHECK_MESSAGE(height[place] > height[below], place, " and ", below);
    CHECK_MESSAGE(height[place] < static_cast<int>(layers::table().size()), place);
  }
}
