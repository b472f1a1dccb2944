package sys

import (
	"os"
	"strconv"
	"strings"
)

// HugePages describes the huge pages that the system offers for shared memory.
type HugePages struct {
	// SetAside and Free count reserved pages of PageSize (vm.nr_hugepages), for HugeMemfd.
	SetAside, Free int
	// Shared is the policy for other shared files (transparent_hugepage/shmem_enabled): always,
	// within_size, advise, never, deny or force; empty if the kernel has none.
	Shared string
}

// Transparent reports whether the mapping of a Memfd gets huge pages without requesting them
// explicitly. Mappings of this package give the advice that the policy may require.
func (h HugePages) Transparent() bool {
	switch h.Shared {
	case "always", "within_size", "advise", "force":
		return true
	}
	return false
}

// LookAtHugePages reads the system's settings. Unreadable values count as 0.
func LookAtHugePages() HugePages { return hugePagesIn("/sys/kernel/mm/") }

func hugePagesIn(mm string) HugePages {
	return HugePages{
		SetAside: NumberIn(mm + "hugepages/hugepages-2048kB/nr_hugepages"),
		Free:     NumberIn(mm + "hugepages/hugepages-2048kB/free_hugepages"),
		Shared:   chosen(TextIn(mm + "transparent_hugepage/shmem_enabled")),
	}
}

// chosen returns the word in brackets.
func chosen(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(after, "]")
	if !found {
		return ""
	}
	return word
}

// TextIn reads a system file, such as one in /proc. It returns "" for an unreadable file.
func TextIn(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// NumberIn reads a number from a system file. It returns 0 for an unreadable file.
func NumberIn(file string) int {
	n, err := strconv.Atoi(TextIn(file))
	if err != nil {
		return 0
	}
	return n
}
