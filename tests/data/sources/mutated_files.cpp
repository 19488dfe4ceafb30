// SPDX-License-Identifier: Apache-2.0
// mutated_files SECONDS [FORMAT ...]: fuzzing of the data readers.
#include <ATen/ops/arange.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "accelerate/base/log.hpp"
#include "accelerate/data/loader_state.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/cifar.hpp"
#include "accelerate/data/sources/csv.hpp"
#include "accelerate/data/sources/csv_columns.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/image.hpp"
#include "accelerate/data/sources/npy.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "tests/mutation.hpp"

namespace fs = std::filesystem;
namespace data = accelerate::data;
using mutation::contents;
using mutation::Format;

namespace {

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
  return {.whole = {small, many, gzipped(small), gzipped(many)}, .read = [](const fs::path& folder, uint64_t way) {
            data::IdxFile file(folder / "x", 3, way % 2 == 0 ? data::OnError::skip : data::OnError::fail);
            (void)(way / 2 % 2 == 0 ? file.read() : file.read(1)).sum();
          }};
}

Format cifar_files() {
  std::string ten(2 * 3073, '\3');
  std::string hundred(2 * 3074, '\5');
  return {.whole = {ten, hundred},
          .read =
              [](const fs::path& folder, uint64_t way) {
                const auto on_error = way / 2 % 2 == 0 ? data::OnError::skip : data::OnError::fail;
                if (way % 2 == 0) {
                  (void)*data::cifar10(folder, {.batch_size = 8}, data::Split::test, data::cifar10_normalisation,
                                       on_error)
                      .begin();
                }
                fs::remove(folder / "test.bin");
                fs::copy_file(folder / "test_batch.bin", folder / "test.bin");
                (void)*data::cifar100(folder, {.batch_size = 8}, data::Split::test, data::Cifar100Labels::fine,
                                      data::cifar100_normalisation, on_error)
                    .begin();
              },
          .file = "test_batch.bin"};
}

Format csv_files() {
  return {
      .whole = {"a,b,label\n1,2,0\n3.5,-4e2,1\n,nan,2\n", "\"a\",\"b\"\"c\",label\r\n\"1\",\"2\r\n\",0\r\n3,4,1\r\n",
                "\xef\xbb\xbf"
                "a;b;label\n1;2;3\n\n4;5;6",
                "a,b,label\r1,\"2\r\",0.0\r\r3,4,1.\r", std::string("\xff\xfe\x61\0,\0b\0\n\0", 10),
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
        if (way / 256 % 4 != 0) return (void)data::read_csv(folder / "x", options).data.sum();
        const auto type = static_cast<data::CsvType>(way / 1024 % 5);
        data::CsvColumnOptions typed{.columns = {{.name = options.header ? "a" : "0", .type = type}},
                                     .delimiter = options.delimiter,
                                     .header = options.header,
                                     .on_error = options.on_error};
        if (way / 64 % 2 == 0) typed.columns.push_back({options.header ? "label" : "1", data::CsvType::category});
        (void)data::read_csv_columns(folder / "x", typed);
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

[[maybe_unused]] Format image_files() {  // unused without libjpeg or libpng
  return {.whole = recorded("images", {".jpg", ".png"}),
          .read =
              [](const fs::path& folder, uint64_t) {
                try {
                  (void)data::decode_image(data::read_file(folder / "x", "test"));
                } catch (const data::BrokenImage& broken) {  // the image folder converts it to an Error
                  accelerate::base::fail(accelerate::ErrorKind::data, {}, "test", "{}", broken.what());
                }
              },
          .repair = repair_png};
}

/// Loads the state in the middle of a pass. If it is refused, it must change nothing; if accepted, the next pass must
/// work.
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

const mutation::Formats& formats() {
  static const mutation::Formats all{
      {"idx", idx_files},     {"cifar", cifar_files},          {"csv", csv_files},
      {"npy", npy_files},     {"loader_state", loader_states},
#ifdef TEST_WITH_IMAGES
      {"image", image_files},
#endif
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  accelerate::base::set_log_handler([](auto, std::string_view) {});  // skipped entries are irrelevant here
  (void)at::arange(4).sum().item<int64_t>();  // creates LibTorch's threads and tables before the memory limit is set
  return mutation::run_formats(formats(), argc, argv);
}
