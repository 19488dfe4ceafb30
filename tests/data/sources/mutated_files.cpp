// SPDX-License-Identifier: Apache-2.0
// mutated_files SECONDS [FORMAT ...]: whole files with bytes changed, cut, doubled and mixed, SECONDS for each format.
// A reader must take such a file or refuse it with an error of ours: no other exception, no crash, nothing that takes
// 10 seconds, no large allocation. The inputs are the same in every run; a failing one is named and kept.
#include <ATen/ops/arange.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/data/loader_state.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/cifar.hpp"
#include "accelerate/data/sources/csv.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/image.hpp"
#include "accelerate/data/sources/npy.hpp"
#include "accelerate/data/stream_loader.hpp"

namespace fs = std::filesystem;
namespace data = accelerate::data;
using Random = std::mt19937_64;

// Used where the program is built with the sanitizer: what it allows in one piece, in place of RLIMIT_AS.
extern "C" const char* __asan_default_options();  // NOLINT
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=32:allocator_may_return_null=0"; }

namespace {

struct Format {
  std::vector<std::string> whole;
  /// Reads the file that lies in this folder; the number chooses among ways to read it.
  std::function<void(const fs::path& folder, uint64_t way)> read;
  std::string file = "x";
  /// Makes checksums right again, so that what they guard is read.
  std::function<void(std::string&)> repair{};
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string gzipped(const std::string& bytes) {
  const fs::path path = fs::temp_directory_path() / ("accelerate-mutated-" + std::to_string(getpid()) + ".gz");
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  std::string packed = contents(path);
  fs::remove(path);
  return packed;
}

std::vector<std::string> recorded(const std::string& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(TEST_SOURCE_DIR "/tests/data/sources/recorded") / folder))
    for (const auto& extension : extensions)
      if (entry.path().extension() == extension) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const auto& path : paths) files.push_back(contents(path));
  return files;
}

Format idx_files() {
  const std::string small(
      "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"
      "abcdefgh",
      24);
  const std::string many = std::string("\0\0\x08\x03\0\0\0\x10\0\0\0\x10\0\0\0\x04", 16) + std::string(1024, 'x');
  return {.whole = {small, many, gzipped(small), gzipped(many)},
          .read = [](const fs::path& folder, uint64_t) { (void)data::read_idx(folder / "x", 3).sum(); }};
}

Format cifar_files() {
  std::string ten(2 * 3073, '\3');
  std::string hundred(2 * 3074, '\5');
  return {.whole = {ten, hundred},
          .read =
              [](const fs::path& folder, uint64_t way) {
                if (way % 2 == 0) (void)*data::cifar10(folder, {.batch_size = 8}, data::Split::test).begin();
                fs::remove(folder / "test.bin");
                fs::copy_file(folder / "test_batch.bin", folder / "test.bin");
                (void)*data::cifar100(folder, {.batch_size = 8}, data::Split::test).begin();
              },
          .file = "test_batch.bin"};
}

Format csv_files() {
  return {
      .whole = {"a,b,label\n1,2,0\n3.5,-4e2,1\n,nan,2\n", "\"a\",\"b\"\"c\",label\r\n\"1\",\"2\r\n\",0\r\n3,4,1\r\n",
                "\xef\xbb\xbf"
                "a;b;label\n1;2;3\n\n4;5;6",
                "1,2,3\n4,5,6\n7,8,9\n", "a\n1e-400\n1e400\n-inf\n+7\n"},
      .read = [](const fs::path& folder, uint64_t way) {
        data::CsvOptions options;
        if (way % 2 == 0) options.on_error = data::OnError::skip;
        if (way / 2 % 2 == 0) options.fill = -1;
        if (way / 4 % 2 == 0) options.header = false;
        if (way / 8 % 2 == 0) options.delimiter = ';';
        if (way / 16 % 2 == 0) options.dtype = at::kLong;
        if (way / 32 % 2 == 0) options.dtype = at::kDouble;
        if (way / 64 % 2 == 0 && options.header) options.target = "label";
        if (!options.target.empty()) options.classes = 3;
        options.text_classes = !options.target.empty() && way / 128 % 2 == 0;
        (void)data::read_csv(folder / "x", options).data.sum();
      }};
}

Format npy_files() {
  return {.whole = recorded("", {".npy"}),
          .read = [](const fs::path& folder, uint64_t) { (void)data::map_npy(folder / "x").clone(); }};
}

void repair_png(std::string& file) {
  if (!file.starts_with("\x89PNG\r\n\x1a\n")) return;
  for (size_t at = 8; at + 12 <= file.size();) {
    const auto* const bytes = reinterpret_cast<const Bytef*>(file.data()) + at;
    const uint64_t length = uint64_t{bytes[0]} << 24U | uint64_t{bytes[1]} << 16U | uint64_t{bytes[2]} << 8U | bytes[3];
    if (at + 12 + length > file.size()) return;
    const auto sum = crc32(0, bytes + 4, static_cast<uInt>(length + 4));
    for (size_t i = 0; i < 4; ++i) file[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
    at += 12 + length;
  }
}

Format image_files() {
  return {
      .whole = recorded("images", {".jpg", ".png"}),
      .read = [](const fs::path& folder, uint64_t) { (void)data::decode_image(data::read_file(folder / "x", "test")); },
      .repair = repair_png};
}

/// Loads the state in the middle of a pass: refused, it must change nothing; taken, the next pass must be one.
template <typename Loader>
void resume(Loader loader, const accelerate::state::LoaderState& state) {
  loader.shard({.rank = 1, .world_size = 2});
  (void)loader.begin();
  const auto stood = loader.state();
  try {
    loader.load_state(state);
  } catch (const accelerate::Error&) {
    if (!(loader.state() == stood)) throw std::logic_error("a refused state that changed the loader");
    throw;
  }
  int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : loader) ++batches;
  if (batches > 10) throw std::logic_error("a pass of " + std::to_string(batches) + " batches");
}

Format loader_states() {
  const auto text = [](const accelerate::state::LoaderState& state) { return nlohmann::json(state).dump(); };
  const auto counting = data::make_stream(
      [] {
        return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
          return next < 20 ? std::optional(next++) : std::nullopt;
        };
      },
      20);
  return {
      .whole = {text({.epoch = 3, .consumed = 8, .samples = 20, .seed = 7, .world_size = 2, .batch_size = 2}),
                text({.consumed = 9, .origin = 5, .samples = 20, .world_size = 4}),
                text({.epoch = 1, .samples = 20, .split_batches = true, .drop_last = true})},
      .read = [counting](const fs::path& folder, uint64_t way) {
        const auto json = nlohmann::json::parse(contents(folder / "x"), nullptr, /*allow_exceptions=*/false);
        if (json.is_discarded())
          accelerate::base::fail(accelerate::ErrorKind::data, {}, "test", "the library that reads JSON refuses it");
        const auto state = data::loader_state_from_json(json);
        const auto numbers = data::memory_source(at::arange(20));
        if (way % 3 == 0) resume(data::Loader(numbers, {.batch_size = 2, .shuffle = true}), state);
        if (way % 3 == 1) resume(data::StreamLoader(counting, {.batch_size = 2}), state);
        if (way % 3 == 2) {
          const auto sizes = [](uint64_t, int64_t) {
            return data::IndexBatches{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12, 13, 14}, {15, 16, 17}, {18, 19}};
          };
          resume(data::Loader(numbers, {.batch_sampler = sizes}), state);
        }
      }};
}

const std::map<std::string, std::function<Format()>>& formats() {
  static const std::map<std::string, std::function<Format()>> all{
      {"idx", idx_files},     {"cifar", cifar_files},          {"csv", csv_files},
      {"npy", npy_files},     {"loader_state", loader_states},
#ifdef TEST_WITH_IMAGES
      {"image", image_files},
#endif
  };
  return all;
}

size_t below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

// Numbers that sizes and counts are often wrong by.
std::string odd_number(Random& random) {
  constexpr std::array<uint32_t, 10> numbers{0, 1, 2, 0x7f, 0x80, 0xff, 0xfffff, 0x7fffffff, 0xffffffff, 0xfffffffe};
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &numbers[below(random, numbers.size())], 4);
  if (random() % 2 == 0) bytes = {bytes[3], bytes[2], bytes[1], bytes[0]};
  return bytes.substr(0, 1 + below(random, 4));
}

void mutate(std::string& file, const std::vector<std::string>& others, Random& random) {
  const size_t at = below(random, file.size());
  const size_t length = 1 + below(random, random() % 2 == 0 ? 4 : 40);
  switch (random() % 8) {
    case 0:
      if (!file.empty()) file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!file.empty()) file[at] = static_cast<char>(random());
      break;
    case 2: {
      const auto number = odd_number(random);
      file.replace(at, number.size(), number);
      break;
    }
    case 3:
      file.erase(at, length);
      break;
    case 4:
      file.insert(at, file.substr(at, length));
      break;
    case 5:
      file.resize(random() % 4 == 0 ? at : file.size());
      break;
    case 6: {
      const auto& other = others[below(random, others.size())];
      file.replace(at, length, other.substr(below(random, other.size()), length));
      break;
    }
    default: {
      constexpr std::string_view texts = "0123456789-+.eE,;\"'\n\r()[]{}<>|nafi: ";
      file.insert(at, 1 + below(random, 3), texts[below(random, texts.size())]);
    }
  }
}

std::string mutated(const Format& format, uint64_t number) {
  Random random(number);
  std::string file = format.whole[below(random, format.whole.size())];
  for (size_t left = below(random, 6); left > 0; --left) mutate(file, format.whole, random);
  if (format.repair && random() % 4 != 0) format.repair(file);
  return file;
}

std::array<char, 200> working_on{};

void too_slow(int) {
  (void)!write(STDERR_FILENO, working_on.data(), std::strlen(working_on.data()));
  _exit(1);
}

/// returns   whether all was well
bool run(const std::string& name, const Format& format, double seconds, const fs::path& folder) {
  std::array<int64_t, 2> counts{};  // refused, taken
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  // At least so many on a machine with much else to do.
  for (uint64_t number = 0; number < 300 || std::chrono::steady_clock::now() < end; ++number) {
    fs::remove(folder / format.file);  // some file systems flush a file that is cut and written again
    std::ofstream(folder / format.file, std::ios::binary) << mutated(format, number);
    std::snprintf(working_on.data(), working_on.size(), "mutated_files: %s, input %lu takes more than 10 s: %s\n",
                  name.c_str(), static_cast<unsigned long>(number), (folder / format.file).c_str());
    alarm(10);
    std::string problem;
    try {
      format.read(folder, number);
      ++counts[1];
    } catch (const accelerate::Error&) {
      ++counts[0];
    } catch (const data::BrokenImage&) {
      ++counts[0];
    } catch (const std::exception& other) {
      problem = other.what();
    }
    alarm(0);
    if (problem.empty()) continue;
    std::cerr << "mutated_files: " << name << ", input " << number << " in " << folder / format.file
              << ": expected an Error, found " << problem << "\n";
    return false;
  }
  std::cout << name << ": " << counts[0] + counts[1] << " files, " << counts[0] << " refused\n";
  if (counts[0] > 0 && counts[1] > 0) return true;
  std::cerr << "mutated_files: " << name << ": expected some files to be refused and some to be taken\n";
  return false;
}

// A header that lies must not be believed: what is there now, and this much more.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (32U << 20U);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "mutated_files SECONDS [FORMAT ...]\n";
    return 2;
  }
  accelerate::base::set_log_handler([](auto, std::string_view) {});  // what is left out is not of interest here
  std::string path = (fs::temp_directory_path() / "accelerate-mutated-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return 2;
  std::vector<std::string> names(argv + 2, argv + argc);
  if (names.empty())
    for (const auto& [name, make] : formats()) names.push_back(name);
  std::signal(SIGALRM, too_slow);
  (void)at::arange(4).sum().item<int64_t>();  // LibTorch has its threads and tables before memory is counted
  limit_memory();
  for (const auto& name : names)
    if (!run(name, formats().at(name)(), std::stod(argv[1]), path)) return 1;
  for (const auto& entry : fs::directory_iterator(path)) fs::remove(entry.path());
  fs::remove(path);
  return 0;
}
