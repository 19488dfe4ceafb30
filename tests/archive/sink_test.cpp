// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/sink.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/base/error.hpp"

using namespace accelerate::archive;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::path(TEST_BINARY_DIR) / "tmp_sink";
};

}  // namespace

TEST_CASE("a file sink accepts pieces, counts bytes and computes XXH3's checksum") {
  const Folder folder;
  FileSink sink(folder.path / "f", "save");
  sink.write("hello ");
  sink.write("");
  sink.write("world");
  sink.finish();
  CHECK(sink.written() == 11);
  CHECK(sink.checksum() == checksum_of("hello world"));
  CHECK(checksum_of("hello world") == "d447b1ea40e6988b");
  CHECK(MappedFile(folder.path / "f", "load").text() == "hello world");
}

TEST_CASE("a checksum does not depend on the pieces, and differs for other bytes") {
  const size_t block = size_t{4} << 20;
  for (const size_t size : {size_t{0}, block - 1, block, block + 1, 2 * block, 2 * block + 12345}) {
    CAPTURE(size);
    std::string bytes(size, ' ');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    Checksum pieces;
    for (size_t at = 0; at < size; at += 1'000'003) pieces.add(std::string_view(bytes).substr(at, 1'000'003));
    const std::string whole = checksum_of(bytes);
    CHECK(pieces.text() == whole);
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      if (size == 0) continue;
      bytes[at] ^= 1;
      CHECK(checksum_of(bytes) != whole);
      bytes[at] ^= 1;
    }
    if (size >= 2 * block) {  // exchanged blocks
      std::swap_ranges(bytes.begin(), bytes.begin() + block, bytes.begin() + block);
      CHECK(checksum_of(bytes) != whole);
    }
  }
}

TEST_CASE("a file sink writes pieces of any size in order, with and without incomplete ones") {
  const Folder folder;
  const size_t piece = size_t{2} << 20;
  for (const auto& sizes : std::vector<std::vector<size_t>>{{piece},
                                                            {piece + 1},
                                                            {3 * piece},
                                                            {1, piece - 1, piece},
                                                            {100, 2 * piece, piece - 100, 7},
                                                            {piece - 1, 2, 3 * piece, 5}}) {
    std::string all;
    {
      FileSink sink(folder.path / "pieces", "save");
      for (const size_t size : sizes) {
        std::string bytes(size, ' ');
        for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((all.size() + i) * 7 + i / 251);
        sink.write(bytes);
        all += bytes;
        CHECK(sink.written() == all.size());
      }
      sink.finish(/*durable=*/false);
      CHECK(sink.checksum() == checksum_of(all));
    }
    CHECK(MappedFile(folder.path / "pieces", "load").text() == all);
    fs::remove(folder.path / "pieces");
  }
}

TEST_CASE("an existing file, or one that cannot be created, is not written") {
  const Folder folder;
  const auto path = (folder.path / "f").string();
  std::ofstream(path) << "old";
  CHECK_THROWS_WITH(FileSink(path, "save_state"),
                    ("save_state: " + path + " cannot be made: File exists (0 bytes were written)").c_str());
  CHECK(MappedFile(path, "load").text() == "old");
  CHECK_THROWS_WITH(FileSink("/proc/f", "save_state"),
                    "save_state: /proc/f cannot be made: No such file or directory (0 bytes were written)");
}

TEST_CASE("a full disk is reported with the number of bytes written") {
  const Folder folder;
  const auto path = (folder.path / "f").string();
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    FileSink sink(path, "save_state");
    sink.write(std::string(3000, 'x'));
    sink.finish();
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  CHECK(message == "save_state: " + path + " cannot be written: File too large (1000 bytes were written)");
}

TEST_CASE("a path that is not a file is not mapped, an empty file is") {
  const Folder folder;
  std::ofstream(folder.path / "empty").close();
  CHECK(MappedFile(folder.path / "empty", "load").text().empty());
  const auto missing = (folder.path / "missing").string();
  CHECK_THROWS_WITH(MappedFile(missing, "load"),
                    ("load: " + missing + " cannot be opened: No such file or directory").c_str());
  CHECK_THROWS_WITH(MappedFile(folder.path, "load"),
                    ("load: " + folder.path.string() + " is a folder: expected a file").c_str());
}
