#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""includes.py <repository>: no file includes a standard header, an operator header of ATen or a project header without use.

Compilers do not report unused headers, and each one slows every build. A header counts as used if the file contains one of
its names as text; names that are only reachable through another header are not required.
"""
import re
import sys
from pathlib import Path

FOLDERS = ("accelerate", "launch", "examples", "tests", "bench")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)

# Patterns that show the use of a header. A header without an entry is used by its own name (std::vector, ...).
STANDARD = {
    "algorithm": r"(sort|find\w*|min|max|(any|all|none)_of|copy\w*|fill\w*|transform|count\w*|m(ax|in)_element|minmax\w*|"
                 r"clamp|equal|reverse|remove\w*|unique|(low|upp)er_bound|stable_\w+|rotate|generate\w*|shuffle|partition|"
                 r"mismatch|is_sorted|binary_search|nth_element|for_each|move|contains|includes|set_\w+|replace\w*|"
                 r"search|(starts|ends)_with|equal_range|swap_ranges|adjacent_find|lexicographical\w+|\w+_heap)",
    "any": r"any|any_cast",
    "array": r"array|to_array",
    "atomic": r"atomic\w*",
    "bit": r"bit_\w+|count[lr]_\w+|endian|popcount|has_single_bit",
    "cctype": r"is[a-z]+|to(lower|upper)",
    "cerrno": r"errno|E[A-Z]{3,}",
    "charconv": r"(from|to)_chars",
    "chrono": r"chrono|\d+(ms|s|us|min|h)",
    "climits": r"\w+_(MAX|MIN|BIT|BUF)",
    "cmath": r"(nan|sqrt|pow|f?abs|is(nan|inf|finite)|floor|ceil|l*round|cos|sin|exp|log\w*|nextafter|fmod|trunc|fmin|hypot|"
             r"ldexp|tanh|expm1|signbit|HUGE_VAL|NAN|INFINITY)",
    "compare": r"\w+_ordering",
    "concepts": r"same_as|derived_from|convertible_to|\w*invocable|integral|floating_point|\w*constructible\w*|\w*copyable|"
                r"\w*signed_integral|\w*movable|swappable|assignable_from|predicate|equality_comparable|destructible",
    "condition_variable": r"condition_variable\w*",
    "csetjmp": r"(set|long)jmp|jmp_buf",
    "csignal": r"SIG\w+|sig\w+|raise|kill",
    "cstddef": r"size_t|byte|nullptr_t|ptrdiff_t|offsetof|max_align_t",
    "cstdint": r"u?int(8|16|32|64|ptr|max)_t|U?INT\d+_(MAX|MIN)|SIZE_MAX",
    "cstdio": r"\w*printf|FILE|rename|remove|f(puts|open|close|flush|write|read)|std(err|out|in)|perror|EOF|BUFSIZ",
    "cstdlib": r"(un)?(set|get)env|\w*[Ee]xit|abort|malloc|free|strto\w+|system|mkd?s?temp|EXIT_\w+|realpath",
    "cstring": r"mem(cpy|set|cmp|move|chr)|str(n?len|error\w*|n?cmp|r?chr|n?cpy|signal)|sig\w+_np",
    "ctime": r"\w*time\w*|tm|\w*clock\w*",
    "exception": r"exception\w*|\w+_exceptions?|terminate",
    "filesystem": r"filesystem|fs",
    "fstream": r"[io]?fstream",
    "functional": r"function|less|greater|plus|minus|hash|bind\w*|c?ref|multiplies|equal_to|reference_wrapper|invoke",
    "future": r"\w*future\w*|promise|packaged_task|async",
    "initializer_list": r"initializer_list|for \([^;)]*? : \{[^}]*\}",
    "iomanip": r"set(w|fill|precision)|put_time|quoted",
    "iosfwd": r"\w*stream",
    "iostream": r"c(out|err|in|log)",
    "istream": r"istream\w*|getline",
    "iterator": r"\w+_iterator\w*|\w+_inserter|next|prev|distance|advance|s?size|begin|end|data|\w*sentinel\w*",
    "limits": r"numeric_limits",
    "map": r"(multi)?map",
    "memory": r"(shared|unique|weak)_ptr|make_(shared|unique)\w*|addressof|enable_shared_from_this|destroy_at|construct_at",
    "mutex": r"\w*mutex|\w+_lock|lock_guard|call_once|once_flag",
    "new": r"bad_alloc|hardware_\w+|align_val_t|new \(",
    "numeric": r"accumulate|iota|reduce|inner_product|partial_sum|gcd|lcm|midpoint|\w*exclusive_scan|transform_reduce",
    "optional": r"optional|nullopt|make_optional",
    "ostream": r"ostream\w*|endl|flush",
    "random": r"mt19937\w*|minstd_rand0?|random_device|\w+_distribution|seed_seq",
    "ranges": r"views|ranges",
    "set": r"(multi)?set",
    "shared_mutex": r"shared_mutex|shared_lock",
    "sstream": r"[io]?stringstream",
    "stdexcept": r"runtime_error|logic_error|invalid_argument|out_of_range|(length|domain|overflow|range)_error",
    "string": r"string|to_string|sto\w+|getline",
    "string_view": r"string_view|sv",
    "system_error": r"error_code|system_error|\w+_category|errc",
    "thread": r"j?thread|this_thread",
    "tuple": r"tuple\w*|tie|apply|ignore|make_tuple",
    "type_traits": r"is_\w+|conditional_t|remove_\w+|decay_t|enable_if_t|void_t|type_identity\w*|(true|false)_type|"
                   r"underlying_type_t|\w*invoke_result\w*|common_type_t|make_(un)?signed_t|add_\w+|\w+_constant",
    "typeindex": r"type_index",
    "typeinfo": r"typeid|type_info|bad_cast",
    "unordered_map": r"unordered_(multi)?map",
    "unordered_set": r"unordered_(multi)?set",
    "utility": r"move|forward|pair|make_pair|exchange|swap|declval|in_place\w*|to_underlying|cmp_\w+|\w*index_sequence\w*|"
               r"unreachable|as_const|integer_sequence|piecewise_construct",
    "variant": r"variant\w*|visit|monostate|holds_alternative|get_if",
}
# Used without naming its declarations.
APART = {"version", "execinfo.h"}


def code_of(text):
    text = re.sub(r"//.*", "", text)
    return INCLUDE.sub("", text)


def names_in(header):
    """Names that a project header declares (an upper bound)."""
    text = code_of(header.read_text(encoding="utf-8"))
    found = set(re.findall(r"\b(?:class|struct|enum class|enum|concept|using|namespace)\s+([A-Za-z_]\w*)", text))
    found |= set(re.findall(r"#define\s+(\w+)", text))
    found |= set(re.findall(r"\b([A-Za-z_]\w*)\s*(?:\(|=|\{|;)", text))
    return found - {"accelerate", "if", "for", "while", "return", "operator", "std"}


def unused_in(path, text, top, known):
    code = code_of(text)
    words = set(re.findall(r"\w+", code))
    for angled, quoted in INCLUDE.findall(text):
        if quoted:
            header = top / quoted
            # Excluded: the file's own header, headers for users that only include others, headers with a test framework.
            if not header.exists() or header.stem in (path.stem, "testing") or path.stem == "accelerate":
                continue
            if "// block: " in text:  # blocks of a README are inserted there and use it
                continue
            if "accelerate.hpp" in quoted or set(known.setdefault(header, names_in(header))) & words:
                continue
            yield quoted
        elif angled.startswith("ATen/ops/"):
            operator = re.sub(r"_native$", "", Path(angled).stem)
            if not re.search(rf"\b{re.escape(operator)}(_|_out|_outf)?\b", code):
                yield angled
        elif re.fullmatch(r"[a-z_]+", angled) and angled not in APART:
            if not re.search(rf"\b({STANDARD.get(angled, angled)})(?!\w)", code):
                yield angled


def main():
    top = Path(sys.argv[1])
    sample = '#include <optional>\n#include <vector>\n#include <ATen/ops/add.h>\n// optional\nstd::vector<int> add_;\n'
    assert list(unused_in(Path("sample.cpp"), sample, top, {})) == ["optional"], "includes.py finds no unused header"
    known, count = {}, 0
    for folder in FOLDERS:
        for path in sorted((top / folder).rglob("*.[ch]pp")):
            for header in unused_in(path, path.read_text(encoding="utf-8"), top, known):
                print(f"{path.relative_to(top)}: includes {header} and uses none of it")
                count += 1
    if count == 0:
        print("every include is used")
    return 1 if count else 0


sys.exit(main())
