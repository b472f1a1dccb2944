package sys

import (
	"os"
	"strconv"
	"strings"
)

// HugePages describes the huge pages that the system offers for shared memory.
type HugePages struct {
	// SetAside is the number of huge pages (of PageSize bytes) that are reserved for HugeMemfd
	// (vm.nr_hugepages). Free is the number of these pages that are not in use.
	SetAside, Free int
	// Shared is the policy for other shared files (transparent_hugepage/shmem_enabled): always,
	// within_size, advise, never, deny or force. It is empty if the kernel has no such policy.
	Shared string
}

// Transparent reports whether the kernel uses huge pages for mappings of a Memfd. The policy
// "advise" requires a call to madvise, which Map makes.
func (h HugePages) Transparent() bool {
	switch h.Shared {
	case "always", "within_size", "advise", "force":
		return true
	}
	return false
}

// ReadHugePages reads the system's settings. Values that cannot be read are 0 or "".
func ReadHugePages() HugePages { return hugePagesIn("/sys/kernel/mm/") }

func hugePagesIn(mm string) HugePages {
	return HugePages{
		SetAside: ReadNumber(mm + "hugepages/hugepages-2048kB/nr_hugepages"),
		Free:     ReadNumber(mm + "hugepages/hugepages-2048kB/free_hugepages"),
		Shared:   bracketed(ReadText(mm + "transparent_hugepage/shmem_enabled")),
	}
}

// bracketed returns the word in brackets, or "" if there is none.
func bracketed(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(after, "]")
	if !found {
		return ""
	}
	return word
}

// ReadText returns the text of a system file, such as one in /proc, without surrounding space.
// If the file cannot be read, it returns "".
func ReadText(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// ReadNumber returns the number in a system file, or 0 if the file cannot be read or does not
// contain a number.
func ReadNumber(file string) int {
	n, err := strconv.Atoi(ReadText(file))
	if err != nil {
		return 0
	}
	return n
}
