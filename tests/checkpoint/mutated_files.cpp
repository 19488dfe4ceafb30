// SPDX-License-Identifier: Apache-2.0
// mutated_files SECONDS [FORMAT ...]: fuzzing of the readers in accelerate/checkpoint.
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/zip.hpp"
#include "accelerate/base/remove_tree.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/read.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/small_content.hpp"
#include "tests/mutation.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace archive = accelerate::archive;
namespace fs = std::filesystem;
using mutation::Format;

namespace {

/// Only the pickle of a checkpoint file is mutated; it is read within a complete file with the original storages.
struct Parts {
  std::string pickle;
  std::vector<std::pair<std::string, std::string>> others;  // members by name
};

Parts parts_of(const std::string& file) {
  Parts parts;
  const archive::Origin origin{.path = "x", .operation = "load"};
  const auto is_code = [](std::string_view name) { return name.find("/code/") != std::string_view::npos; };
  for (const auto& member : archive::read_zip(file, origin, is_code)) {
    const std::string bytes(archive::member_bytes(file, member));
    if (member.name.ends_with("/data.pkl")) {
      parts.pickle = bytes;
    } else {
      parts.others.emplace_back(member.name, bytes);
    }
  }
  return parts;
}

void put_together(const Parts& parts, const std::string& pickle, const fs::path& path) {
  archive::StringSink sink;
  archive::ZipWriter zip(sink);
  const std::string top = parts.others.front().first.substr(0, parts.others.front().first.find('/') + 1);
  zip.add(top + "data.pkl", pickle);
  for (const auto& [name, bytes] : parts.others) zip.add(name, bytes);
  zip.finish();
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << sink.text();
}

void touch(const checkpoint::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() < 1'000'000) static_cast<void>(tensor.ne(0).any());
  }
}

std::string file_of(const std::function<archive::PickleValue(checkpoint::TorchFileWriter&)>& make) {
  checkpoint::TorchFileWriter writer("save");
  const auto root = make(writer);
  archive::StringSink sink;
  writer.write(sink, root);
  return sink.text();
}

/// \param read  Reads a torch.save file.
Format torch_format(const std::string& file, const std::function<void(const checkpoint::TorchFile&)>& read) {
  const Parts parts = parts_of(file);
  return {.whole = {parts.pickle}, .read = [parts, read](const fs::path& folder, uint64_t) {
            put_together(parts, mutation::contents(folder / "x"), folder / "whole");
            read(checkpoint::TorchFile(folder / "whole", "load"));
          }};
}

Format optimizers() {
  return torch_format(
      file_of([](auto& writer) { return checkpoint::to_python(testing::small_content().optimizers[0], writer); }),
      [](const auto& file) {
        for (const auto& [number, tensors] : checkpoint::optimizer_from(file).tensors) touch(tensors);
      });
}
Format schedulers() {
  return torch_format(file_of([](auto&) { return checkpoint::to_python(*testing::small_content().schedulers[2]); }),
                      [](const auto& file) { static_cast<void>(checkpoint::scheduler_from(file)); });
}
Format scalers() {
  return torch_format(file_of([](auto&) { return checkpoint::to_python(*testing::small_content().scaler); }),
                      [](const auto& file) { static_cast<void>(checkpoint::scaler_from(file)); });
}
Format loaders() {
  return torch_format(file_of([](auto&) { return checkpoint::to_python(*testing::small_content().loaders[1]); }),
                      [](const auto& file) { static_cast<void>(checkpoint::loader_from(file)); });
}
Format random_states() {
  return torch_format(
      file_of([](auto& writer) { return checkpoint::to_python(testing::small_content().random, torch::kCPU, writer); }),
      [](const auto& file) {
        const auto states = checkpoint::random_states_from(file, torch::kCPU);
        touch({{"cpu", states.cpu}});
        file_of([&](auto& writer) {
          return checkpoint::to_python(states, torch::kCPU, writer);
        });  // Python exceptions are passed on
      });
}

/// Files of LibTorch's torch::save().
Format libtorch_archives() {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  std::ostringstream module;
  torch::save(net, module);
  return torch_format(module.str(), [](const auto& file) { touch(file.tensors()); });
}

/// A file of Python's torch.save with tensors that have conj and neg bits.
Format python_files() {
  return torch_format(mutation::contents(TEST_SOURCE_DIR "/tests/checkpoint/recorded/conj_neg.pt"),
                      [](const auto& file) { touch(file.all_as_tensors(/*logs_skipped=*/false)); });
}

/// A temporary checkpoint folder.
struct Whole {
  explicit Whole(const std::string& name)
      : place(fs::temp_directory_path() / fmt::format("accelerate-mutated-{}-{}", name, ::getpid())) {
    testing::save(place, testing::small_content());
  }
  ~Whole() { accelerate::base::remove_tree(place); }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  fs::path place;
};

// Recomputes the manifest's own checksum.
void make_right(std::string& manifest) {
  auto all = nlohmann::ordered_json::parse(manifest, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) return;
  const auto text = [&] { return all.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace); };
  all.erase("checksum");
  all["checksum"] = archive::checksum_of(text());
  manifest = text() + "\n";
}

/// A complete folder with one changed file.
Format folders(const std::string& name) {
  const auto whole = std::make_shared<Whole>(name);
  const fs::path changed = whole->place / name;
  Format format{.whole = {mutation::contents(changed)}, .read = [changed, whole](const fs::path& folder, uint64_t) {
                  fs::remove(changed);
                  fs::copy_file(folder / "x", changed);
                  const auto content = testing::load(whole->place);
                  for (const auto& model : content.models) touch(model);
                  for (const auto& optimizer : content.optimizers) {
                    for (const auto& [number, tensors] : optimizer.tensors) touch(tensors);
                  }
                  if (content.window) touch(content.window->gradients);
                  for (const auto& custom : content.customs) {
                    if (const auto* tensors = std::get_if<checkpoint::NamedTensors>(&custom)) touch(*tensors);
                  }
                }};
  if (name == "manifest.json") format.repair = make_right;
  return format;
}

Format indices() {
  return {.whole = {R"({"metadata": {"total_size": 8}, "weight_map": {"a": "m.safetensors", "b": "m.safetensors"}})"},
          .read =
              [](const fs::path& folder, uint64_t) {
                if (!fs::exists(folder / "m.safetensors")) {
                  checkpoint::save_file(folder / "m.safetensors", {{"a", torch::ones({1})}, {"b", torch::ones({1})}},
                                        "save");
                }
                touch(checkpoint::read_weights(folder / "model.safetensors.index.json", "load_model"));
              },
          .file = "model.safetensors.index.json"};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);  // no pool: memory is limited
  return mutation::run_formats({{"optimizer", optimizers},
                                {"scheduler", schedulers},
                                {"scaler", scalers},
                                {"loader", loaders},
                                {"random", random_states},
                                {"libtorch", libtorch_archives},
                                {"python", python_files},
                                {"window", [] { return folders("window_0.bin"); }},
                                {"custom", [] { return folders("custom_checkpoint_1.pkl"); }},
                                {"manifest", [] { return folders("manifest.json"); }},
                                {"index", indices}},
                               argc, argv);
}
