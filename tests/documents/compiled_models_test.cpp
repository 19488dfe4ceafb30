// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of docs/how_to/compiled_models.md with the packages of
// tests/nn/compiled_packages.py.
#include <accelerate/accelerate.hpp>
#include <filesystem>

#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

namespace {

/// A working folder with the files that the blocks name.
class PackageFolder {
 public:
  explicit PackageFolder(const std::filesystem::path& packages) : before_(std::filesystem::current_path()) {
    for (const auto& [name, file] : {std::pair("mlp.pt2", "net.pt2"), std::pair("block.pt2", "block.pt2")}) {
      std::filesystem::copy_file(packages / name, folder_ / file);
    }
    std::filesystem::current_path(folder_.path);
  }
  ~PackageFolder() { std::filesystem::current_path(before_); }
  PackageFolder(const PackageFolder&) = delete;
  PackageFolder& operator=(const PackageFolder&) = delete;

 private:
  testing::TemporaryFolder folder_;
  std::filesystem::path before_;
};

// block: docs/how_to/compiled_models.md: Train, 2

std::filesystem::path packages() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "compiled_packages";
}

}  // namespace

TEST_CASE("docs/how_to/compiled_models.md") {
  const PackageFolder folder(packages());
  accelerate::Accelerator accelerator({.cpu = true});
  const auto rows = accelerate::data::from_tensors(torch::ones({32, 6}, torch::kDouble),
                                                   torch::zeros({32, 3}, torch::kDouble), {.batch_size = 4});
  {
    // block: docs/how_to/compiled_models.md: Train
    CHECK(model(torch::ones({4, 6}, torch::kDouble)).abs().max().item<double>() < 0.5);
  }
  {
    // block: docs/how_to/compiled_models.md: Use one package for many blocks
    CHECK(blocks->forward(torch::ones({5, 4})).sizes() == at::IntArrayRef({5, 4}));
  }
  TwoHeads heads((packages() / "conv.pt2").string(), accelerate::nn::CompiledOptions{.trusted = true});
  CHECK(heads->forward(torch::ones({4, 3, 6, 6}, torch::kDouble)).second.sizes() == at::IntArrayRef({4}));
}
