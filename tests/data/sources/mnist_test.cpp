// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include <sys/resource.h>

#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/mnist.hpp"
#include "tests/data/sources/idx_bytes.hpp"

using accelerate::ErrorKind;
using accelerate::data::fashion_mnist;
using accelerate::data::mnist;
using accelerate::data::OnError;
using accelerate::data::read_idx;
using accelerate::data::Split;
using namespace test_files;

namespace {

const fs::path shipped = TEST_SOURCE_DIR "/examples/data";

std::string refused(const fs::path& path, const std::string& bytes, int64_t dimensions = 1) {
  write(path, bytes);
  return message([&] { (void)read_idx(path, dimensions); }, ErrorKind::data);
}

}  // namespace

TEST_CASE("the included digits are read, normalised as in torchvision") {
  auto train = mnist(shipped / "mnist", {.batch_size = 100});
  CHECK(train.sample_count() == 14200);
  const auto it = train.begin();
  CHECK(it->data.sizes() == at::IntArrayRef{100, 1, 28, 28});
  CHECK(it->data.dtype() == torch::kFloat);
  CHECK(it->target.slice(0, 0, 8).equal(torch::tensor({5, 0, 4, 1, 9, 2, 1, 3}, torch::kLong)));

  const auto bytes = read_idx(shipped / "mnist/train-images-idx3-ubyte.gz", 3);
  const auto expected = bytes.slice(0, 0, 100).unsqueeze(1).to(torch::kFloat).div(255).sub_(0.1307).div_(0.3081);
  CHECK(it->data.equal(expected));
}

TEST_CASE("image indices may be a strided column") {
  const auto digits = mnist(shipped / "mnist");
  const auto column = torch::arange(8).view({4, 2}).select(1, 0);
  const auto found = digits.source()->read(column), due = digits.source()->read(column.contiguous());
  CHECK(found.data.equal(due.data));
  CHECK(found.target.equal(due.target));
}

TEST_CASE("the test split and Fashion-MNIST are read from the same layout") {
  CHECK(mnist(shipped / "mnist", {}, Split::test).sample_count() == 10000);
  auto fashion = fashion_mnist(shipped / "fashion-mnist", {.batch_size = 2}, Split::test);
  CHECK(fashion.sample_count() == 4400);
  const auto bytes = read_idx(shipped / "fashion-mnist/t10k-images-idx3-ubyte.gz", 3);
  const auto expected = bytes.slice(0, 0, 2).unsqueeze(1).to(torch::kFloat).div(255).sub_(0.2860).div_(0.3530);
  CHECK(fashion.begin()->data.equal(expected));
}

TEST_CASE("files may be gzipped or not") {
  const Folder folder;
  write(folder.path / "plain", idx({3, 2, 2}));
  write_gzip(folder.path / "packed.gz", idx({3, 2, 2}));
  const auto plain = read_idx(folder.path / "plain", 3);
  CHECK(plain.equal(torch::arange(12, torch::kByte).view({3, 2, 2})));
  CHECK(read_idx(folder.path / "packed.gz", 3).equal(plain));

  write(folder.path / "t10k-images-idx3-ubyte", idx({2, 28, 28}));
  write_gzip(folder.path / "t10k-labels-idx1-ubyte.gz", idx({2}));
  CHECK(mnist(folder.path, {}, Split::test).sample_count() == 2);
}

TEST_CASE("an invalid IDX file is refused with path, expected and found") {
  const Folder folder;
  const auto path = folder.file("x");
  CHECK(refused(path, word(0x0803) + word(1)) ==
        "read_idx: " + path + " has the wrong magic: expected 0x00000801 (bytes, 1 dimensions), found 0x00000803");
  CHECK(refused(path, word(0x0803) + word(1), 3) ==
        "read_idx: " + path + " is cut off: expected a header of 16 bytes, found 8 bytes");
  CHECK(refused(path, idx({5}).substr(0, 10)) ==
        "read_idx: " + path + " is cut off: expected 5 bytes after the header [5], found 2");
  CHECK(refused(path, idx({5}) + "x") ==
        "read_idx: " + path + " is too long: expected 5 bytes after the header [5], found more");
  CHECK(refused(path, word(0x0803) + word(4000000000U) + word(4000000000U) + word(4000000000U), 3) ==
        "read_idx: " + path +
            " is damaged: its header has [4000000000, 4000000000, 4000000000], more than any such file contains");
}

TEST_CASE("a header with a huge size does not cause an allocation") {
  const Folder folder;
  const auto path = folder.file("x");
  CHECK(refused(path, word(0x0801) + word(4000000000U) + "abc") ==
        "read_idx: " + path + " is cut off: expected 4000000000 bytes after the header [4000000000], found 3");
}

TEST_CASE("an invalid gzip file is refused with path, expected and found") {
  const Folder folder;
  const auto path = folder.file("x.gz");
  CHECK(refused(path, idx({5})) ==
        "read_idx: " + path + " is not gzip: expected the bytes 1f 8b at its start, found 00 00");
  CHECK(refused(path, "") ==
        "read_idx: " + path + " is not gzip: expected the bytes 1f 8b at its start, found 0 bytes");

  write_gzip(path, idx({3000}));
  const auto whole = read(path);
  CHECK(refused(path, whole.substr(0, whole.size() - 12)) ==
        "read_idx: " + path + " is cut off: expected the end of the gzip stream, found the end of the file");
  auto damaged = whole;
  damaged[whole.size() - 6] = static_cast<char>(damaged[whole.size() - 6] ^ 0x55);
  CHECK(refused(path, damaged).starts_with("read_idx: " + path + " is damaged: expected a gzip stream, zlib found "));
}

TEST_CASE("a file cut at any length is an Error, plain or gzipped") {
  const Folder folder;
  const auto plain = idx({4, 3, 2});
  for (size_t length = 0; length < plain.size(); ++length)
    CHECK(refused(folder.path / "plain", plain.substr(0, length), 3).starts_with("read_idx: "));
  write_gzip(folder.path / "packed.gz", plain);
  const auto packed = read(folder.path / "packed.gz");
  for (size_t length = 0; length < packed.size(); ++length) {
    CAPTURE(length);
    CHECK(refused(folder.path / "packed.gz", packed.substr(0, length), 3).starts_with("read_idx: "));
  }
}

TEST_CASE("images of another size and a wrong number of labels are refused") {
  const Folder folder;
  const auto images = folder.file("train-images-idx3-ubyte");
  const auto labels = folder.file("train-labels-idx1-ubyte");
  write(images, idx({2, 28, 28}));
  write(labels, idx({3}));
  CHECK(message([&] { (void)mnist(folder.path); }, ErrorKind::data) ==
        "mnist: " + images + " has 2 images: expected 3, the number of labels in " + labels);
  write(images, idx({3, 28, 27}));
  CHECK(message([&] { (void)mnist(folder.path); }, ErrorKind::data) ==
        "mnist: " + images + " has images of 28x27: expected 28x28");
}

TEST_CASE("a file without images, and a label outside 0 to 9, are refused with file and sample") {
  const Folder folder;
  const auto images = folder.file("t10k-images-idx3-ubyte");
  const auto labels = folder.file("t10k-labels-idx1-ubyte");
  write(images, idx({0, 28, 28}));
  write(labels, idx({0}));
  CHECK(message([&] { (void)mnist(folder.path, {}, Split::test); }, ErrorKind::data) ==
        "mnist: " + images + " has 0 images: expected at least 1");
  write(images, idx({3, 28, 28}));
  write(labels, word(0x0801) + word(3) + "\x05\x09\x0a");
  CHECK(message([&] { (void)mnist(folder.path, {}, Split::test); }, ErrorKind::data) ==
        "mnist: " + labels + " has label 10 for sample 2: expected a label from 0 to 9");
}

TEST_CASE("with skip, images with invalid labels or beyond truncated files are omitted") {
  const Folder folder;
  const auto images = folder.file("t10k-images-idx3-ubyte");
  const auto labels = folder.file("t10k-labels-idx1-ubyte");
  const auto read_whole = [&] { return mnist(folder.path, {.batch_size = 9}, Split::test, OnError::skip); };
  const auto classes = [&] { return read_whole().begin()->target; };
  const auto five = word(0x0801) + word(5) + "\x05\x0a\x09\x0b\x03";
  write(images, idx({5, 28, 28}));
  write(labels, five);
  const std::string label = labels + " has label 10 for sample 1: expected a label from 0 to 9";
  CHECK(logged([&] {
          CHECK(classes().equal(torch::tensor({5, 9, 3}, torch::kLong)));
          const auto bytes = read_idx(images, 3)[2].to(torch::kFloat).div(255).sub_(0.1307).div_(0.3081);
          CHECK(read_whole().begin()->data[1][0].equal(bytes));
        }) == std::vector<std::string>{"mnist: 2 of 5 images are left out; the first: " + label});
  const auto cut = idx({5, 28, 28}).substr(0, 16 + 3 * 784 - 1);
  write(images, cut);
  CHECK(logged([&] { CHECK(classes().equal(torch::tensor({5}, torch::kLong))); }) ==
        std::vector<std::string>{"mnist: 4 of 5 images are left out; the first: " + label});
  write(labels, idx({5}));
  const std::string cut_off = images + " is cut off: expected 3920 bytes after the header [5, 28, 28], found 2351";
  CHECK(logged([&] {
          CHECK(classes().equal(torch::tensor({0, 1}, torch::kLong)));
        }) == std::vector<std::string>{"mnist: 3 of 5 images are left out; the first: " + cut_off});
  fs::remove(images);
  write_gzip(images + ".gz", idx({5, 28, 28}));
  const auto packed = read(images + ".gz");
  write(images + ".gz", packed.substr(0, packed.size() - 12));
  CHECK(logged([&] { CHECK(classes().size(0) < 5); }).size() == 1);
  fs::remove(images + ".gz");
  write(images, idx({2, 28, 28}));
  CHECK(logged([&] { CHECK(classes().size(0) == 2); }) ==
        std::vector<std::string>{"mnist: 3 of 5 images are left out; the first: " + images +
                                 " has 2 images: expected 5, the number of labels in " + labels});
  write(labels, word(0x0801) + word(2) + "\x0c\x0a");
  CHECK(message([&] { (void)read_whole(); }, ErrorKind::data) ==
        "mnist: all 2 images are broken; the first: " + labels +
            " has label 12 for sample 0: expected a label from 0 to 9");
}

TEST_CASE("inconsistent sizes are refused before decompression, because a small file may hold gigabytes") {
  const Folder folder;
  const auto images = folder.file("train-images-idx3-ubyte");
  const auto labels = folder.file("train-labels-idx1-ubyte.gz");
  write(images, idx({2, 28, 28}));
  write_gzip(labels, word(0x0801) + word(300'000'000), 300);
  const auto largest = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  const auto before = largest();
  CHECK(message([&] { (void)mnist(folder.path); }, ErrorKind::data) ==
        "mnist: " + images + " has 2 images: expected 300000000, the number of labels in " + labels);
  CHECK(largest() - before < 50'000);

  // Only the header: no file of its length can contain that much.
  const auto path = folder.file("x.gz");
  write_gzip(path, word(0x0801) + word(4'000'000'000U) + "abc");
  const auto most = (fs::file_size(path) * 1032 - 8);
  CHECK(message([&] { (void)read_idx(path, 1); }, ErrorKind::data) ==
        "read_idx: " + path + " is cut off: expected 4000000000 bytes after the header [4000000000], found " +
            std::to_string(most) + " at most");
}
