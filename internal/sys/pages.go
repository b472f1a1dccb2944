package sys

import (
	"os"
	"strconv"
	"strings"
)

// HugePages describes the system's huge pages for shared memory. There are two kinds: those that
// the administrator has reserved, and those that the kernel uses transparently.
type HugePages struct {
	Reserved int // number of reserved pages (vm.nr_hugepages)
	Free     int // number of reserved pages that are not used
	// SharedPolicy says when the kernel uses transparent huge pages for shared memory. It is the
	// setting transparent_hugepage/shmem_enabled, or "" if the kernel has no such setting.
	SharedPolicy string
}

// IsTransparent reports whether mappings of a Memfd use transparent huge pages. This includes the
// policy "advise", because Map calls madvise.
func (h HugePages) IsTransparent() bool {
	switch h.SharedPolicy {
	case "always", "within_size", "advise", "force":
		return true
	}

	return false
}

// ReadHugePages reads the system's settings. Values that cannot be read are 0 or "".
func ReadHugePages() HugePages { return hugePagesIn("/sys/kernel/mm/") }

// hugePagesIn is ReadHugePages for a copy of /sys/kernel/mm/, in tests.
func hugePagesIn(folder string) HugePages {
	return HugePages{
		Reserved:     ReadNumber(folder + "hugepages/hugepages-2048kB/nr_hugepages"),
		Free:         ReadNumber(folder + "hugepages/hugepages-2048kB/free_hugepages"),
		SharedPolicy: wordInBrackets(ReadText(folder + "transparent_hugepage/shmem_enabled")),
	}
}

// wordInBrackets returns the selected word of a setting, such as "never" of "always [never]".
func wordInBrackets(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(after, "]")
	if !found {
		return ""
	}

	return word
}

// ReadText returns the text of a file without surrounding space, or "" after an error.
func ReadText(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}

	return strings.TrimSpace(string(text))
}

// ReadNumber returns the number in a file, or 0 after an error.
func ReadNumber(file string) int {
	n, err := strconv.Atoi(ReadText(file))
	if err != nil {
		return 0
	}

	return n
}
