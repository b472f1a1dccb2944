package sys

import (
	"os"
	"strconv"
	"strings"
)

// HugePages describes the huge pages that the system offers for shared memory.
type HugePages struct {
	Reserved int // number of huge pages reserved for HugeMemfd (vm.nr_hugepages)
	Free     int // number of reserved pages that are not in use
	// SharedPolicy is the policy for other shared files (transparent_hugepage/shmem_enabled), or ""
	// if the kernel has no such policy.
	SharedPolicy string
}

// Transparent reports whether the kernel uses huge pages for mappings of a Memfd. Map makes the
// call to madvise that the policy "advise" requires.
func (h HugePages) Transparent() bool {
	switch h.SharedPolicy {
	case "always", "within_size", "advise", "force":
		return true
	}
	return false
}

// ReadHugePages reads the system's settings. Values that cannot be read are 0 or "".
func ReadHugePages() HugePages { return hugePagesIn("/sys/kernel/mm/") }

func hugePagesIn(mm string) HugePages {
	return HugePages{
		Reserved:     ReadNumber(mm + "hugepages/hugepages-2048kB/nr_hugepages"),
		Free:         ReadNumber(mm + "hugepages/hugepages-2048kB/free_hugepages"),
		SharedPolicy: wordInBrackets(ReadText(mm + "transparent_hugepage/shmem_enabled")),
	}
}

// wordInBrackets returns the word in brackets, or "" if there is none.
func wordInBrackets(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(after, "]")
	if !found {
		return ""
	}
	return word
}

// ReadText returns the text of a system file without surrounding space, or "" if the file cannot be
// read.
func ReadText(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// ReadNumber returns the number in a system file, or 0 if there is none.
func ReadNumber(file string) int {
	n, err := strconv.Atoi(ReadText(file))
	if err != nil {
		return 0
	}
	return n
}
