// SPDX-License-Identifier: Apache-2.0
// recorded/ contains files that PyTorch and safetensors wrote in Python, see record_python_files.py.
#include "tests/testing.hpp"
//
#include <map>
#include <string>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;

namespace {

const fs::path python_files = TEST_SOURCE_DIR "/tests/checkpoint/recorded";

std::map<std::string, torch::Tensor> weights_in(const std::string& name) {
  std::map<std::string, torch::Tensor> weights;
  for (const auto& [key, tensor] : checkpoint::read_weights(python_files / name, "load")) weights[key] = tensor;
  return weights;
}

std::string refusal_of(const std::string& name) {
  try {
    static_cast<void>(checkpoint::read_weights(python_files / name, "load"));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "nothing thrown";
}

std::string about(const std::string& name) { return "load: " + (python_files / name).string() + ": "; }

}  // namespace

TEST_CASE("parameters and tensors with Python attributes are read as plain tensors") {
  const auto weights = weights_in("attributes.pt");
  CHECK(weights.size() == 4);
  CHECK(weights.at("weight").equal(torch::arange(6, torch::kFloat).reshape({2, 3})));
  CHECK(weights.at("bias").equal(torch::arange(3, torch::kFloat) - 1));
  CHECK((weights.at("small").scalar_type() == torch::kUInt16));
  CHECK(weights.at("small").to(torch::kInt).equal(torch::arange(3, torch::kInt)));
  CHECK(weights.at("plain").equal(torch::ones({2})));
}

TEST_CASE("conj and neg bits in a torch.save file keep Python's values") {
  const auto weights = weights_in("conj_neg.pt");
  CHECK(weights.size() == 5);
  const auto real = torch::tensor({1.0F, 3.0F});
  const auto imaginary = torch::tensor({2.0F, -4.0F});
  CHECK(weights.at("z").equal(torch::complex(real, imaginary)));
  CHECK(weights.at("conj").equal(torch::complex(real, -imaginary)));
  CHECK(weights.at("neg").equal(-imaginary));
  CHECK(weights.at("both").equal(torch::complex(-real, imaginary)));
  CHECK(weights.at("parameter").equal(torch::complex(real, -imaginary).to(torch::kComplexDouble)));
  CHECK(weights.at("conj").is_conj());
  CHECK(weights.at("neg").is_neg());
  CHECK(weights.at("conj").const_data_ptr() == weights.at("z").const_data_ptr());
}

TEST_CASE("tensors with conj and neg bits are written with their values resolved") {
  const testing::SharedFolder folder;
  for (const char* file : {"resolved.pt", "resolved.safetensors"}) {
    checkpoint::NamedTensors saved;
    for (const auto& [name, tensor] : weights_in("conj_neg.pt"))
      if (name != "parameter") saved.emplace_back(name, tensor);  // safetensors lacks complex128
    checkpoint::save_file(folder.path / file, saved, "save");
    const auto read = checkpoint::read_weights(folder.path / file, "load");
    CHECK(read.size() == 4);
    for (const auto& [name, tensor] : read) {
      CAPTURE(name);
      CHECK_FALSE(tensor.is_conj());
      CHECK_FALSE(tensor.is_neg());
      CHECK(tensor.equal(weights_in("conj_neg.pt").at(name)));
    }
  }
}

TEST_CASE("a NumPy scalar beside weights is refused with the Python call that replaces it") {
  const auto refusal = refusal_of("numpy_scalar.pt");
  CHECK(refusal.starts_with(about("numpy_scalar.pt") + "the pickle at byte "));
  CHECK(refusal.ends_with(
      ": it names 'numpy._core.multiarray.scalar', which is not read: only numbers, texts, containers and tensors are; "
      "a program that is in a checkpoint is not run; it is a NumPy scalar, such as numpy.float64(0.5): in Python, load "
      "the file with torch.load(path, weights_only=False), replace each such value with the Python number "
      "value.item(), and save it again with torch.save"));
}

TEST_CASE("a file of PyTorch before 1.6 is refused, also if its weights contain a ZIP signature") {
  for (const char* name : {"before_1_6.pt", "before_1_6_protocol_4.pt"}) {
    CHECK(refusal_of(name) ==
          about(name) +
              "the file is of PyTorch's format before 1.6; load it in Python and save it again, with "
              "torch.save(torch.load(path), path)");
  }
  const auto weights = weights_in("signature.pt");
  CHECK(weights.at("weight").narrow(0, 0, 4).equal(torch::tensor({80, 75, 5, 6}, torch::kByte)));
}

TEST_CASE("a safetensors file with null metadata is read, as safetensors does") {
  CHECK(weights_in("null_metadata.safetensors").at("a").equal(torch::tensor({1.5F, -2.0F})));
}

TEST_CASE("a BatchNorm saved without num_batches_tracked is loaded strictly and keeps its count, as in PyTorch") {
  const testing::SharedFolder folder;
  checkpoint::save_file(folder.path / "w.safetensors", checkpoint::read_weights(python_files / "batch_norm.pt", "load"),
                        "save");
  for (const auto& file : {python_files / "batch_norm.pt", folder.path / "w.safetensors"}) {
    accelerate::Accelerator accelerator({.cpu = true});
    torch::nn::BatchNorm1d norm(2);
    auto model = accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(3, 2), norm));
    for (const int64_t count : {0, 5}) {
      norm->num_batches_tracked.fill_(count);
      norm->running_var.fill_(-1);
      const auto loaded = accelerator.load_model(model, file);
      CHECK(loaded.missing.empty());
      CHECK(loaded.unexpected.empty());
      CHECK(norm->running_mean.equal(torch::full({2}, 6.0F)));
      CHECK(norm->running_var.equal(torch::full({2}, 7.0F)));
      CHECK(norm->num_batches_tracked.item<int64_t>() == count);
    }
  }
}

TEST_CASE("a batch count with missing statistics is reported as missing") {
  const testing::SharedFolder folder;
  checkpoint::NamedTensors saved = checkpoint::read_weights(python_files / "batch_norm.pt", "load");
  std::erase_if(saved, [](const auto& one) { return one.first == "1.running_var"; });
  checkpoint::save_file(folder.path / "w.safetensors", saved, "save");
  accelerate::Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)));
  std::string refusal;
  try {
    static_cast<void>(accelerator.load_model(model, folder.path / "w.safetensors"));
  } catch (const accelerate::Error& error) {
    refusal = error.what();
  }
  CHECK(
      refusal.ends_with("load_model: the model is not the one that was saved: not saved: 1.running_var, "
                        "1.num_batches_tracked (strict = false passes over names)"));
  const auto loaded = accelerator.load_model(model, folder.path / "w.safetensors", /*strict=*/false);
  CHECK(loaded.missing == std::vector<std::string>{"1.running_var", "1.num_batches_tracked"});
}
