// SPDX-License-Identifier: Apache-2.0
#include "tests/setup/layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

namespace {

using Arrows = std::map<std::string, layers::Names>;

/// Parses "a, b > c > d": a and b may include c, c may include d. Within a folder, subfolders have short names.
void add_arrows(Arrows& arrows, const std::string& room, const std::string& statement) {
  const auto place = [&](const std::string& name) {
    if (name == "interface") return room;
    return layers::table().contains(room + "/" + name) ? room + "/" + name : name;
  };
  static const std::regex word("[a-z_/]+");
  Lines above;
  std::istringstream levels(statement);
  for (std::string level; std::getline(levels, level, '>');) {
    Lines here;
    for (std::sregex_iterator at(level.begin(), level.end(), word), end; at != end; ++at)
      here.push_back(place(at->str()));
    for (const auto& from : above) arrows[from].insert(here.begin(), here.end());
    above = here;
  }
}

/// The lines below the diagram of docs/design/architecture.md: "folder: statements; of arrows (with remarks)".
Arrows drawn_arrows() {
  std::ifstream readme(fs::path(TEST_SOURCE_DIR) / "docs/design/architecture.md");
  const std::regex beginning(R"(   ([a-z]+): +(.*))");
  const std::regex remark(R"(\([^)]*\))");
  std::map<std::string, std::string> rooms;
  std::smatch match;
  std::string room;
  bool below = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("## ")) below = line == "## Picture of the layers";
    if (!below) continue;
    if (line == "```" && !room.empty()) break;
    if (std::regex_match(line, match, beginning)) {
      room = match[1];
      line = match[2];
    }
    if (!room.empty()) rooms[room] += " " + std::regex_replace(line, remark, "");
  }
  Arrows arrows;
  for (const auto& [name, text] : rooms) {
    std::istringstream statements(text);
    for (std::string one; std::getline(statements, one, ';');) {
      if (one.find('>') != std::string::npos) add_arrows(arrows, name, one);
    }
  }
  return arrows;
}

/// True if a path of arrows leads from one place to the other.
bool leads(const Arrows& arrows, const std::string& from, const std::string& to) {
  const auto below = arrows.find(from);
  if (below == arrows.end()) return false;
  return below->second.contains(to) || std::any_of(below->second.begin(), below->second.end(),
                                                   [&](const auto& next) { return leads(arrows, next, to); });
}

/// A temporary repository with empty accelerate/ and launch/.
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

TEST_CASE("the table of layers allows every include in accelerate and launch") {
  CHECK(layers::violations(TEST_SOURCE_DIR) == Lines{});
}

TEST_CASE("forbidden includes are named with file, both components and header") {
  const TemporaryTree tree;
  tree.write("accelerate/base/log.cpp", "#include <torch/types.h>\n#include <fmt/format.h>\n");
  tree.write("accelerate/comm/group.hpp", "#include <ATen/core/Tensor.h>\n#include \"accelerate/base/error.hpp\"\n");
  tree.write("accelerate/data/loader.cpp", "  #  include \"accelerate/comm/group.hpp\"  // why\n");
  tree.write("accelerate/env/deep/er.hpp", "#include \"accelerate/comm/group.hpp\"\n");
  tree.write("accelerate/gradient/gradient_reducer.cpp", "#include <accelerate/optim/fused_step.hpp>\n");
  tree.write("accelerate/accelerator.hpp",
             "#include \"accelerate/prepared/model.hpp\"\n#include \"launch/run/spawn.hpp\"\n");
  tree.write("accelerate/data/facade.cpp", "#include \"accelerate/accelerator.hpp\"\n");
  tree.write("accelerate/comm/mpi/channel.cpp", "#include \"accelerate/comm/threads/backend.hpp\"\n");
  tree.write("accelerate/comm/core/worker_thread.hpp", "#include \"accelerate/comm/group.hpp\"\n");
  tree.write("accelerate/tree/tree.cpp", "#include \"accelerate/comm/core/reduce_op.hpp\"\n");
  tree.write("launch/plan/plan.cpp", "#include \"accelerate/comm/group.hpp\"\n#include <c10/util/Exception.h>\n");
  CHECK(
      layers::violations(tree.root) ==
      Lines{
          "accelerate/accelerator.hpp: facade may not include launch/run (launch/run/spawn.hpp)",
          "accelerate/base/log.cpp: base may not include LibTorch (torch/types.h)",
          "accelerate/comm/core/worker_thread.hpp: comm/core may not include comm (accelerate/comm/group.hpp)",
          "accelerate/comm/mpi/channel.cpp: comm/mpi may not include comm/threads "
          "(accelerate/comm/threads/backend.hpp)",
          "accelerate/data/facade.cpp: data may not include facade (accelerate/accelerator.hpp)",
          "accelerate/data/loader.cpp: data may not include comm (accelerate/comm/group.hpp)",
          "accelerate/env/deep/er.hpp: env may not include comm (accelerate/comm/group.hpp)",
          "accelerate/gradient/gradient_reducer.cpp: gradient may not include optim (accelerate/optim/fused_step.hpp)",
          "accelerate/tree/tree.cpp: tree may not include comm/core (accelerate/comm/core/reduce_op.hpp)",
          "launch/plan/plan.cpp: launch/plan may not include LibTorch (c10/util/Exception.h)",
          "launch/plan/plan.cpp: launch/plan may not include comm (accelerate/comm/group.hpp)"});
}

TEST_CASE("a component that the table does not list is refused") {
  const TemporaryTree tree;
  tree.write("accelerate/attic/box.hpp", "#include <vector>\n");
  CHECK(layers::violations(tree.root) ==
        Lines{"accelerate/attic/box.hpp: the room 'attic' is not in the table of layers"});
}

TEST_CASE("components of one layer never include one another") {
  const layers::Names rooms{"data", "gradient", "optim", "checkpoint", "tracking", "nn", "profile", "job"};
  for (const auto& from : rooms) {
    for (const auto& to : rooms) CHECK_FALSE(layers::table().at(from).contains(to));
  }
}

TEST_CASE("the table has no cycle: if one component may include another, the reverse is not allowed") {
  std::map<std::string, int> height;  // a place is above all places that it may include
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

TEST_CASE("the lines below the README's picture match the table in both directions") {
  const auto arrows = drawn_arrows();
  CHECK(arrows.size() > 30);
  for (const auto& [from, below] : arrows) {
    REQUIRE_MESSAGE(layers::table().contains(from), from);
    for (const auto& to : below) CHECK_MESSAGE(layers::table().at(from).contains(to), from, " > ", to);
  }
  for (const auto& [from, allowed] : layers::table()) {
    for (const auto& to : allowed) CHECK_MESSAGE(leads(arrows, from, to), from, " > ", to, " is not drawn");
  }
}
