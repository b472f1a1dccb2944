package house

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	spanOfCode = regexp.MustCompile("`([^`\n]+)`")
	// nameInCode is an identifier with an inner capital letter, or a selector: plain words may be
	// anything.
	nameInCode = regexp.MustCompile(`^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(\(\))?$`)
	isGoName   = regexp.MustCompile(`[a-z][A-Z]|\.[A-Z]`)
	ofOthers   = regexp.MustCompile(`^(cu|nccl|cuda)[A-Z]`) // CUDA's and NCCL's
	aWord      = regexp.MustCompile(`\w+`)
)

// describesCode reports whether a page is about this code, and names little that others have.
func describesCode(page string) bool {
	return page == "ARCHITECTURE.md" || page == "CONTRIBUTING.md" ||
		strings.HasPrefix(page, "docs/design/") || strings.HasPrefix(page, "docs/extending/")
}

// lostNames finds names of code in pages that no source has.
func lostNames(all pages) (found []finding) {
	words := map[string]bool{}
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			for _, word := range aWord.FindAllString(text, -1) {
				words[word] = true
			}
		}
	}
	for page, text := range all {
		if !describesCode(page) {
			continue
		}
		prose(text, func(number int, line string) {
			for _, m := range spanOfCode.FindAllStringSubmatch(line, -1) {
				if name := m[1]; nameInCode.MatchString(name) && isGoName.MatchString(name) {
					found = append(found, lostParts(page, number, name, words)...)
				}
			}
		})
	}
	return found
}

// lostParts finds the parts of a selector that are no words of sources.
func lostParts(page string, number int, name string, words map[string]bool) (found []finding) {
	for _, part := range strings.Split(strings.TrimSuffix(name, "()"), ".") {
		if !words[part] && !ofOthers.MatchString(part) {
			found = append(found, finding{page, number, fmt.Sprintf("no source has %s, of %s", part, name)})
		}
	}
	return found
}
