// SPDX-License-Identifier: Apache-2.0
// Damaged, foreign and unsuitable packages are refused before any of their code is loaded.
#include "tests/nn/compiled_support.hpp"
//
#include <sys/stat.h>

#include "accelerate/nn/compiled_host.hpp"
#include "accelerate/nn/compiled_layout.hpp"

using namespace compiled_testing;
using nlohmann::json;
using testing::refusal;

namespace {

std::string opening(const std::string& path, const CompiledOptions& options = kTrusted) {
  return refusal([&] { const CompiledModule net(path, options); });
}

/// Text of the error for a package with an edited record, after its path.
std::string opening_edited(const std::function<void(json&)>& edit) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "edited.pt2";
  write_edited("block", path, edit);
  const std::string text = opening(path), prefix = "CompiledModule: " + path + ": ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

}  // namespace

TEST_CASE("an unchanged copy opens") {
  CHECK(opening_edited([](json&) {}) == "");
}

TEST_CASE("a missing, empty, truncated or foreign file is refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "net.pt2", at = "CompiledModule: " + path;
  CHECK(opening(path) == at + " cannot be opened: No such file or directory");
  write(path, "");
  CHECK(opening(path) == at + ": the file is not a ZIP file, as torch.save writes them");
  const std::string bytes = testing::text_of(package("block"));
  write(path, std::string_view(bytes).substr(0, bytes.size() / 2));
  CHECK(opening(path) == at + ": the file was cut: a ZIP file ends with its directory");
  torch::save(torch::ones({2}), path);
  CHECK(opening(path) ==
        at + ": the file has no member extra/accelerate.json, so tools/export_compiled.py did not write it; "
             "export the module with that tool");
}

TEST_CASE("a flipped bit in any member is refused") {
  const std::string file = testing::text_of(package("block"));
  const testing::TemporaryFolder folder;
  const std::string path = folder / "net.pt2";
  size_t members = 0;
  for (const auto& member : accelerate::archive::read_zip(file, {.path = "block"})) {
    CAPTURE(member.name);
    std::string damaged = file;
    damaged[member.begin + member.size / 2] ^= 4;
    write(path, damaged);
    CHECK(opening(path).find("its bytes were changed") != std::string::npos);
    ++members;
  }
  CHECK(members > 10);
}

TEST_CASE("a package of another version, processor or format is refused with the remedy") {
  const auto here = accelerate::nn::compiled::this_host();
  const std::string minor = here.torch.substr(0, here.torch.rfind('.'));
  CHECK(opening_edited([](json& record) { record["torch"] = "2.99.1+cpu"; }) ==
        "the package was exported with torch 2.99.1+cpu, this program uses LibTorch " + here.torch +
            "; export the module with torch " + minor);
  CHECK(opening_edited([&](json& record) { record["torch"] = minor + ".77"; }) == "");
  CHECK(opening_edited([](json& record) { record["machine"] = "riscv64"; }) ==
        "the package was compiled on riscv64, this machine is " + here.machine +
            "; export the module on a machine of this type");
  CHECK(opening_edited([](json& record) {
          record["processor_flags"] = {"avx1024", "sse9"};
        }) ==
        "the package was compiled for a processor with 2 instruction sets, this processor lacks 2 of them: avx1024, "
        "sse9; "
        "export the module on this machine");
  CHECK(opening_edited([](json& record) { record["format"] = 2; }) ==
        "the record has format 2, this library reads 1; export the module with its export_compiled.py");
}

TEST_CASE("a record that contradicts itself or the weights is refused") {
  CHECK(opening_edited([](json& record) { record.erase("gives"); }).find("the record cannot be read: ") == 0);
  CHECK(opening_edited([](json& record) { record["tensors"][0]["dtype"] = "float33"; }) ==
        "the record has the unknown dtype \"float33\"");
  CHECK(opening_edited([](json& record) {
          record["tensors"][0]["stride"] = {-4, 1};
        }) == "the record has shape [4, 4] with strides [-4, 1]");
  CHECK(opening_edited([](json& record) {
          record["tensors"][0]["shape"] = {4, -9};
        }) == "the record has shape [4, -9] with strides [4, 1]");
  CHECK(opening_edited([](json& record) { record["tensors"][0]["offset"] = 64; }) ==
        "the record places linear.weight at byte 64 with 64 bytes, the weights have 80 bytes");
  CHECK(opening_edited([](json& record) {
          record["tensors"][0]["shape"] = {400, 4};
        }) == "the record places linear.weight at byte 0 with 64 bytes, the weights have 80 bytes");
  CHECK(opening_edited([](json& record) { record["tensors"][1]["name"] = "linear.weight"; }) ==
        "the record has linear.weight twice");
  CHECK(opening_edited([](json& record) {
          record["tensors"].insert(record["tensors"].begin(), record["tensors"].back());
        }) == "the record has an input before a parameter");
  const auto missing = [](std::string_view what) {
    return "the record refers to a " + std::string(what) + " that does not exist";
  };
  CHECK(opening_edited([](json& record) { record["gives"][0] = 99; }) == missing("forward input"));
  CHECK(opening_edited([](json& record) { record["takes"][0] = {"input", 99}; }) == missing("forward input"));
  CHECK(opening_edited([](json& record) { record["takes"][0] = {"output", 99}; }) == missing("forward output"));
  CHECK(opening_edited([](json& record) { record["gradients"].clear(); }) == missing("gradient"));
  CHECK(opening_edited([](json& record) { record["tensors"] = json::array({record["tensors"].back()}); }) ==
        missing("forward input"));
}

TEST_CASE("a file outside the program's folder causes one warning; a world-writable one is refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "net.pt2";
  write(path, testing::text_of(package("block")));
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "compiled_file_test.pt2";
  const auto lines = lines_logged_by([&] {
    CHECK(opening(path, {}) == "");
    CHECK(opening(path, {}) == "");
    write(own, testing::text_of(package("block")));
    CHECK(opening(own, {}) == "");
    std::filesystem::remove(own);
  });
  CHECK(lines == std::vector<std::string>{"CompiledModule: " + path +
                                          " is outside the program's folder, and loading it executes its code; set "
                                          "CompiledOptions::trusted if you know its origin"});
  REQUIRE(::chmod(path.c_str(), 0666) == 0);
  CHECK(opening(path, {}) ==
        "CompiledModule: " + path +
            ": every user can write this file, and loading it executes its code; remove the permission "
            "with chmod o-w, or set CompiledOptions::trusted");
  CHECK(opening(path, kTrusted) == "");
}

TEST_CASE("code for another device is refused when the module runs, with both devices") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "net.pt2";
  write_edited("block", path, [](json& record) { record["device"] = "cuda"; });
  CompiledModule net(path, kTrusted);
  CHECK(refusal([&] {
          net->forward(torch::ones({5, 4}));
        }) == "CompiledModule: " + path +
                  ": the package was compiled for cuda, the parameters are on cpu; move the module with to(), or "
                  "export it on cpu");
}

TEST_CASE("a relative path still names the verified file after a change of the folder") {
  const testing::TemporaryFolder folder;
  write_edited("block", folder / "net.pt2", [](json&) {});
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  CompiledModule net("net.pt2", kTrusted);
  std::filesystem::current_path(before);
  CHECK(net->forward(torch::ones({5, 4})).size(0) == 5);
}

TEST_CASE("a file that was replaced, changed or removed after it was verified is not executed") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "net.pt2", other = folder / "other.pt2";
  const std::map<std::string, std::function<void()>> changes{
      {"replaced", [&] { std::filesystem::rename(other, path); }},
      {"changed", [&] { std::ofstream(path, std::ios::app) << "x"; }},
      {"removed", [&] { std::filesystem::remove(path); }}};
  for (const auto& [name, change] : changes) {
    CAPTURE(name);
    for (const auto& file : {path, other}) write_edited("block", file, [](json&) {});
    CompiledModule net(path, kTrusted);
    change();
    CHECK(refusal([&] {
            net->forward(torch::ones({5, 4}));
          }) ==
          "CompiledModule: " + path +
              ": the file was changed, replaced or removed after it was verified, so its code is not executed; keep it "
              "until the first forward on each device");
  }
}

TEST_CASE("code that starts more threads than the process has causes a warning with the remedy") {
  const testing::TemporaryFolder folder;
  const auto lines_of = [&](const std::function<void(json&)>& edit) {
    const std::string path = folder / "net.pt2";
    write_edited("block", path, edit);
    return lines_logged_by([&] {
      CompiledModule net(path, kTrusted);
      net->forward(torch::ones({5, 4}));
    });
  };
  const int here = at::get_num_threads();
  CHECK(lines_of([&](json& record) { record["threads"] = here; }).empty());
  CHECK(lines_of([](json& record) { record.erase("threads"); }).empty());  // an older exporter
  CHECK(lines_of([](json& record) { record["threads"] = 4096; }) ==
        std::vector<std::string>{
            fmt::format("CompiledModule: {} was compiled for 4096 threads and starts them in each process, although "
                        "this process has {}; export it with OMP_NUM_THREADS={}, or with "
                        "options={{\"cpp.dynamic_threads\": True}}",
                        folder / "net.pt2", here, here)});
}

TEST_CASE("code for another GPU is refused") {
  namespace compiled = accelerate::nn::compiled;
  const accelerate::archive::Origin origin{.path = "net.pt2", .operation = "CompiledModule"};
  compiled::Record record;
  record.device = "cuda";
  record.cuda_capability = "9.0";
  record.cuda = "13.0";
  const c10::Device gpu(c10::DeviceType::CUDA, 1);
  CHECK(refusal([&] { check_device(record, gpu, {.cuda = "13.0", .capability = "9.0"}, origin); }) == "");
  CHECK(refusal([&] { check_device(record, gpu, {.cuda = "13.2", .capability = "9.0"}, origin); }) == "");
  CHECK(refusal([&] { check_device(record, gpu, {.cuda = "12.8", .capability = "9.0"}, origin); }) ==
        "CompiledModule: net.pt2: the package was exported with CUDA 13.0, this program uses CUDA 12.8; export the "
        "module with a torch for CUDA 12");
  CHECK(refusal([&] { check_device(record, gpu, {.cuda = "13.0", .capability = "8.6"}, origin); }) ==
        "CompiledModule: net.pt2: the package was compiled for compute capability 9.0, cuda:1 has 8.6; export the "
        "module on "
        "such a GPU");
  CHECK(refusal([&] { check_device(record, gpu, {}, origin); }).find("cuda:1 has none in this build") !=
        std::string::npos);
}

TEST_CASE("one dynamic size must be equal in all inputs; derived sizes are not compared") {
  namespace compiled = accelerate::nn::compiled;
  const accelerate::archive::Origin origin{.path = "net.pt2", .operation = "CompiledModule"};
  compiled::Record record;
  record.symbols = {{.min = 2, .max = 0}};
  const compiled::Layout layout{.shape = {-1, 2}, .contiguous_only = true};
  std::vector<int64_t> sizes{-1};
  const auto fits = [&](const at::Tensor& tensor, const compiled::Layout& expected) {
    return compiled::fit(tensor, expected, "input 1", at::kCPU, sizes, record, origin);
  };
  CHECK(fits(torch::ones({2, 5}).t(), layout).is_contiguous());
  CHECK(sizes == std::vector<int64_t>{5});
  CHECK(refusal([&] {
          fits(torch::ones({4, 2}), layout);
        }) ==
        "CompiledModule: net.pt2: input 1 has 4 in a dynamic dimension, an earlier input has 5; they must be equal, as "
        "in the "
        "example of the export");
  CHECK(fits(torch::ones({10, 2}), {.shape = {-2, 2}, .contiguous_only = true}).size(0) == 10);
}

TEST_CASE("ranges of dynamic sizes and processor flags") {
  namespace compiled = accelerate::nn::compiled;
  const compiled::SizeRange range{.min = 2, .max = 64, .excluded = {8, 9}};
  CHECK(range.text() == "2 to 64 without 8, 9");
  CHECK(compiled::SizeRange{}.text() == "at least 2");
  for (const int64_t good : {2, 7, 10, 64}) CHECK(range.contains(good));
  for (const int64_t bad : {1, 8, 9, 65}) CHECK_FALSE(range.contains(bad));
  CHECK(compiled::processor_flags_in("processor : 0\nflags\t\t: fpu avx2\nflags\t: other\n") ==
        std::set<std::string>{"fpu", "avx2"});
  CHECK(compiled::processor_flags_in("Features : asimd sve\n") == std::set<std::string>{"asimd", "sve"});
  CHECK(compiled::processor_flags_in("processor : 0\n").empty());
  CHECK_FALSE(compiled::this_host().processor_flags.empty());
}
