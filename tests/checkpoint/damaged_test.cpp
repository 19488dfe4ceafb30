// SPDX-License-Identifier: Apache-2.0
// Truncated, corrupted, exchanged and malicious files.
#include "tests/testing.hpp"
//
#include <algorithm>
#include <cstring>
#include <fstream>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/pickle.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/checkpoint/small_content.hpp"
#include "tests/refusal.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using testing::refusal;
using testing::save;
using testing::SharedFolder;
using testing::small_content;

namespace {

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

void write_torch_file(const fs::path& path, const accelerate::archive::PickleValue& root) {
  accelerate::archive::StringSink sink;
  checkpoint::TorchFileWriter("save").write(sink, root);
  write(path, sink.text());
}

// True for bytes of a safetensors header, or of the first member's header and the directory of a ZIP file.
bool is_of_header(const std::string& file, size_t byte) {
  if (!file.starts_with("PK")) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), sizeof(bytes));
    return byte < sizeof(bytes) + bytes;
  }
  return byte < 64 || byte >= file.find("PK\x01\x02");
}

using accelerate::archive::PickleValue;
PickleValue text(const char* words) { return std::string(words); }

}  // namespace

TEST_CASE("a flipped bit in any file, or a file cut at any position, is detected and the file named") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  save(place, small_content());
  for (const auto& entry : fs::directory_iterator(place)) {
    const auto path = entry.path();
    const std::string name = path.filename().string(), whole = content_of(path);
    if (name == "manifest.json") continue;  // see archive/manifest_test
    CAPTURE(name);
    const auto manifest = accelerate::archive::manifest_of(place, "load");
    const auto listed =
        std::find_if(manifest.files.begin(), manifest.files.end(), [&](const auto& file) { return file.name == name; });
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (size_t bit = 0; bit < 8 * whole.size(); bit += is_of_header(whole, bit / 8) ? 1 : 1 + whole.size() / 5) {
      const auto put = [&, at = static_cast<std::streamoff>(bit / 8)](int byte) {
        file.seekp(at).put(static_cast<char>(byte)).flush();
      };
      put(whole[bit / 8] ^ (1 << (bit % 8)));
      const auto damage = accelerate::archive::find_file_damage(*listed, place, /*verify=*/true);
      put(whole[bit / 8]);
      if (damage && damage->starts_with(name + " has checksum ")) continue;
      FAIL("bit ", bit, " of ", name, ": ", damage.value_or("nothing is wrong"));
    }
    file.seekp(0).put(static_cast<char>(whole[0] ^ 1)).flush();
    CHECK(accelerate::archive::find_damage(place, true)->starts_with(name + " has checksum "));
    file.close();
    for (const size_t size : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
      write(path, whole.substr(0, size));
      CHECK(*accelerate::archive::find_damage(place, true) ==
            fmt::format("{} has {} bytes, expected {}", name, size, whole.size()));
    }
    fs::remove(path);
    CHECK(*accelerate::archive::find_damage(place, true) == name + " is missing");
    write(path, whole);
    CHECK_FALSE(accelerate::archive::find_damage(place, true));
  }
}

TEST_CASE("without checksums a flipped bit causes an Error or another value, nothing worse") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  save(place, small_content());
  for (const char* name : {"model.safetensors", "optimizer.bin", "random_states_0.pkl", "scheduler.bin"}) {
    const std::string whole = content_of(place / name);
    for (size_t bit = 0; bit < 8 * whole.size(); bit += 1 + bit / 31) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      write(place / name, flipped);
      try {
        const auto content = testing::load(place);
        for (const auto& [key, tensor] : content.models[0]) static_cast<void>(tensor.sum());
      } catch (const accelerate::Error& error) {
        CHECK((error.kind() == accelerate::ErrorKind::data || error.kind() == accelerate::ErrorKind::io));
      }
    }
    write(place / name, whole);
  }
}

TEST_CASE("missing and mistyped members are named, with the file") {
  const SharedFolder folder;
  const auto path = folder.path / "f";
  const auto error_of = [&](const PickleValue& root, auto read) {
    write_torch_file(path, root);
    const auto what = refusal([&] { static_cast<void>(read(checkpoint::TorchFile(path, "load_state"))); });
    const std::string prefix = "load_state: " + path.string() + ": ";
    CHECK(what.starts_with(prefix));
    return what.substr(std::min(prefix.size(), what.size()));
  };
  using checkpoint::py_dict, checkpoint::py_list;
  CHECK(error_of(py_list({}), checkpoint::scaler_from) == "the loss scale's state is a list, expected a dict");
  CHECK(error_of(py_dict({{text("growth_factor"), 2.0}}), checkpoint::scaler_from) ==
        "the loss scale's state lacks 'scale'");
  CHECK(error_of(py_dict({{text("scale"), text("x")}}), checkpoint::scaler_from) ==
        "'scale' of the loss scale's state is a text, expected a number");
  CHECK(error_of(py_dict({{text("last_epoch"), 0.5}}), checkpoint::scheduler_from) ==
        "'last_epoch' of the schedule's state is a float, expected an integer");
  CHECK(error_of(py_dict({{text("last_epoch"), int64_t{1}}, {text("_last_lr"), py_list({text("x")})}}),
                 checkpoint::scheduler_from) == "'_last_lr' of the schedule's state is a text, expected numbers");
  CHECK(error_of(py_dict({{text("_schedulers"), text("x")}}), checkpoint::scheduler_from) ==
        "'_schedulers' of the schedule's state is a text, expected a list of schedules");
  const auto groups = [&](PickleValue parameters) {
    return std::pair<PickleValue, PickleValue>{text("param_groups"),
                                               py_list({py_dict({{text("params"), std::move(parameters)}})})};
  };
  CHECK(error_of(py_dict({groups(text("all"))}), checkpoint::optimizer_from) ==
        "'params' of param_groups[0] is a text, expected a list");
  CHECK(error_of(py_dict({groups(py_list({int64_t{0}, int64_t{0}})), {text("state"), py_dict({})}}),
                 checkpoint::optimizer_from) == "parameter 0 is in the groups twice");
  CHECK(error_of(py_dict({groups(py_list({int64_t{0}})), {text("state"), py_dict({{int64_t{5}, py_dict({})}})}}),
                 checkpoint::optimizer_from) == "there is a state of parameter 5, which no group lists");
  CHECK(error_of(py_dict({groups(py_list({int64_t{0}})),
                          {text("state"), py_dict({{int64_t{0}, py_dict({{text("exp_avg"), text("x")}})}})}}),
                 checkpoint::optimizer_from) == "'exp_avg' of the state of parameter 0 is a text, expected a tensor");
  CHECK(error_of(py_dict({{text("seed"), text("-1")}}), checkpoint::loader_from) == "the loader's state lacks 'epoch'");
  write_torch_file(path, py_dict({{text("w"), text("x")}}));
  CHECK(refusal([&] { static_cast<void>(checkpoint::TorchFile(path, "load").tensors()); }) ==
        "load: " + path.string() + ": 'w' is a text, expected a tensor");
}

TEST_CASE("a random state of another size and a part with an unknown number are refused with the expected values") {
  const auto now = checkpoint::random_states(torch::kCPU);
  CHECK(refusal([&] { checkpoint::check_random_states({.cpu = torch::zeros({3}, torch::kByte)}, torch::kCPU, {}); }) ==
        fmt::format("load_state: the saved random state of cpu is [3] Byte, expected [{}] Byte; it was saved for "
                    "another kind of device or version of LibTorch",
                    now.cpu.numel()));
  const SharedFolder folder;
  const auto place = folder.path / "c";
  save(place, small_content());
  auto manifest = accelerate::archive::manifest_of(place, "load_state");
  std::find_if(manifest.parts.begin(), manifest.parts.end(), [](const auto& part) {
    return part.kind == "model";
  })->index = 10'000;
  std::ofstream(place / "manifest.json") << write_manifest(manifest);
  CHECK(refusal([&] { static_cast<void>(testing::load(place)); }) ==
        "load_state: " + place.string() + ": the manifest has a model of index 10000");
}

TEST_CASE("a PyTorch ChainedScheduler has the position of its first schedule") {
  const SharedFolder folder;
  using checkpoint::py_dict, checkpoint::py_list;
  write_torch_file(folder.path / "f",
                   py_dict({{text("_schedulers"), py_list({py_dict({{text("last_epoch"), int64_t{3}}})})},
                            {text("_last_lr"), py_list({0.5})}}));
  CHECK(checkpoint::scheduler_from(checkpoint::TorchFile(folder.path / "f", "load_state")).steps == 3);
  // A nested scheduler with a first component that is nested itself.
  const auto inner = py_dict({{text("_schedulers"), py_list({py_dict({{text("last_epoch"), int64_t{4}}})})}});
  write_torch_file(folder.path / "f",
                   py_dict({{text("_schedulers"), py_list({inner})}, {text("_last_lr"), py_list({0.5})}}));
  CHECK(checkpoint::scheduler_from(checkpoint::TorchFile(folder.path / "f", "load_state")).steps == 4);
}

TEST_CASE("a Python learning rate may be a tensor, as in AdamW(lr=torch.tensor(0.5)), but not complex") {
  const SharedFolder folder;
  const auto path = folder.path / "f";
  using checkpoint::py_dict, checkpoint::py_list;
  const auto schedule = [&](const torch::Tensor& rate) {
    checkpoint::TorchFileWriter writer("save");
    accelerate::archive::StringSink sink;
    const auto of = [&] { return py_list({writer.tensor(rate, "lr"), 0.25}); };
    writer.write(sink, py_dict({{text("last_epoch"), int64_t{1}}, {text("base_lrs"), of()}, {text("_last_lr"), of()}}));
    write(path, sink.text());
    return checkpoint::scheduler_from(checkpoint::TorchFile(path, "load_state"));
  };
  CHECK(schedule(torch::tensor(0.5)).base_lrs == std::vector<double>{0.5, 0.25});
  CHECK(schedule(torch::tensor({0.5})).last_lrs == std::vector<double>{0.5, 0.25});
  const auto i = torch::full({}, c10::complex<double>(0, 1), torch::kComplexDouble);
  CHECK(refusal([&] { schedule(i); }).ends_with("'_last_lr' of the schedule's state is an object, expected numbers"));

  checkpoint::TorchFileWriter writer("save");
  accelerate::archive::StringSink sink;
  writer.write(sink,
               py_dict({{text("param_groups"), py_list({py_dict({{text("lr"), writer.tensor(i, "lr")},
                                                                 {text("eps"), writer.tensor(torch::ones({}), "")},
                                                                 {text("params"), py_list({})}})})},
                        {text("state"), py_dict({})}}));
  write(path, sink.text());
  const auto optimizer = checkpoint::optimizer_from(checkpoint::TorchFile(path, "load_state"));
  REQUIRE(optimizer.groups[0].options.size() == 1);
  CHECK(optimizer.groups[0].options[0].first == "eps");
}

TEST_CASE("read_weights() verifies the weights of a checkpoint against its manifest") {
  const SharedFolder folder;
  const auto place = folder.path / "c", file = place / "model.safetensors";
  save(place, small_content());
  CHECK(checkpoint::read_weights(place, "load_model").size() == 6);
  std::string bytes = content_of(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(file, bytes);
  for (const auto& path : {place, file}) {
    const auto what = refusal([&] { static_cast<void>(checkpoint::read_weights(path, "load_model")); });
    CHECK(what.starts_with("load_model: " + place.string() + " is damaged: model.safetensors has checksum "));
    CHECK(what.ends_with(": its bytes were changed"));
  }
  write(place / "manifest.json", "{\"name\": \"my web app\"}");
  CHECK(checkpoint::read_weights(place, "load_model").size() == 6);
}

TEST_CASE("an index with files outside its folder, or with missing tensors, is refused") {
  const SharedFolder folder;
  const auto index = folder.path / "model.safetensors.index.json";
  checkpoint::save_file(folder.path / "part.safetensors", {{"w", torch::ones({2})}}, "save");
  const auto error_of = [&](const std::string& json) {
    write(index, json);
    return refusal([&] { static_cast<void>(checkpoint::read_weights(folder.path, "load_model")); });
  };
  CHECK(error_of(R"({"weight_map": {"w": "../secret.safetensors"}})")
            .ends_with("expected a file's name without folders"));
  CHECK(error_of(R"({"weight_map": {"v": "part.safetensors"}})") ==
        "load_model: " + index.string() + ": 'v' is not in the file 'part.safetensors'");
  CHECK(error_of(R"({"weight_map": {"w": "part.safetensors"}})").empty());
  fs::remove(index);
  CHECK(refusal([&] { static_cast<void>(checkpoint::read_weights(folder.path, "load_model")); }) ==
        "load_model: " + folder.path.string() +
            " has neither model.safetensors, nor pytorch_model.bin, nor an index of either");
}

TEST_CASE("ranges that do not cover their tensor are refused") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  save(place, small_content());
  const auto whole = accelerate::archive::manifest_of(place, "load_state");
  const auto error_of = [&](auto change) {
    auto manifest = whole;
    for (auto& range : manifest.ranges) {
      if (range.tensor == "model.1/w") change(manifest, range);
    }
    write(place / "manifest.json", write_manifest(manifest));
    return refusal([&] { static_cast<void>(testing::load(place)); });
  };
  using accelerate::archive::Manifest, accelerate::archive::ManifestRange;
  CHECK(error_of([](Manifest&, ManifestRange&) {}).empty());
  CHECK(error_of([](Manifest&, ManifestRange& range) { range.end = 3; }) ==
        "load_state: " + place.string() +
            ": elements 0 to 3 of 'model.1/w' are 4 elements in model_1.safetensors, of a tensor of 4");
  CHECK(error_of([](Manifest&, ManifestRange& range) { range.sizes = {5}; }) ==
        "load_state: " + place.string() + ": elements 4 to 5 of 'model.1/w' are in no file");
  CHECK(error_of([](Manifest&, ManifestRange& range) {
          range.key = "v";
        }).ends_with("model_1.safetensors: there is no tensor 'v', which the manifest names"));
}
