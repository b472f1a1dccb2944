package sys

import (
	"os"
	"strconv"
	"strings"
)

// HugePages is what the system offers of huge pages for shared memory.
type HugePages struct {
	// SetAside and Free count pages of PageSize (vm.nr_hugepages), for HugeMemfd.
	SetAside, Free int
	// Shared is the policy for other shared files (transparent_hugepage/shmem_enabled): always,
	// within_size, advise, never, deny or force; empty where the kernel has none.
	Shared string
}

// Transparent reports whether a Memfd that is mapped gets huge pages without having asked for them
// by name: mappings of this package give the advice that the policy may want.
func (h HugePages) Transparent() bool {
	switch h.Shared {
	case "always", "within_size", "advise", "force":
		return true
	}
	return false
}

// LookAtHugePages asks the system. What cannot be read counts as nothing.
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

// TextIn reads a file of the system's, such as one of /proc. One that cannot be read is empty.
func TextIn(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// NumberIn reads a file of the system's that has a number. One that cannot be read counts as 0.
func NumberIn(file string) int {
	n, err := strconv.Atoi(TextIn(file))
	if err != nil {
		return 0
	}
	return n
}
