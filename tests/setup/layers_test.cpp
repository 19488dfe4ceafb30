// SPDX-License-Identifier: Apache-2.0
#include "tests/setup/layers.hpp"

#include <doctest/doctest.h>

#include <fstream>

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
             "#include \"accelerate/prepared/model.hpp\"\n#include \"launch/spawn.hpp\"\n");
  tree.write("accelerate/data/facade.cpp", "#include \"accelerate/accelerator.hpp\"\n");
  tree.write("launch/plan.cpp", "#include \"accelerate/comm/group.hpp\"\n#include <c10/util/Exception.h>\n");
  CHECK(layers::violations(tree.root) ==
        Lines{"accelerate/base/log.cpp: base may not include LibTorch (torch/types.h)",
              "accelerate/data/facade.cpp: data may not include facade (accelerate/accelerator.hpp)",
              "accelerate/data/loader.cpp: data may not include comm (accelerate/comm/group.hpp)",
              "accelerate/env/deep/er.hpp: env may not include comm (accelerate/comm/group.hpp)",
              "accelerate/gradient/engine.cpp: gradient may not include optim (accelerate/optim/fused_step.hpp)",
              "launch/plan.cpp: launch may not include LibTorch (c10/util/Exception.h)",
              "launch/plan.cpp: launch may not include comm (accelerate/comm/group.hpp)"});
}

TEST_CASE("a room that the table does not know is refused") {
  const TemporaryTree tree;
  tree.write("accelerate/attic/box.hpp", "#include <vector>\n");
  CHECK(layers::violations(tree.root) ==
        Lines{"accelerate/attic/box.hpp: the room 'attic' is not in the table of layers"});
}

TEST_CASE("rooms never include one another") {
  const layers::Names rooms{"data", "gradient", "optim", "checkpoint", "tracking", "nn", "profile"};
  for (const auto& from : rooms) {
    for (const auto& to : rooms) CHECK_FALSE(layers::table().at(from).contains(to));
  }
}
