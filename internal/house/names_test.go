package house

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// nameInCode matches an identifier or a selector.
	nameInCode   = regexp.MustCompile(`^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(\(\))?$`)
	isGoName     = regexp.MustCompile(`[a-z][A-Z]|\.[A-Z]`)
	externalName = regexp.MustCompile(`^(cu|nccl|cuda)[A-Z]`) // names of CUDA and NCCL
	anyWord      = regexp.MustCompile(`\w+`)
)

// describesCode reports whether a page describes the code of this module and rarely mentions the
// code of other projects.
func describesCode(page string) bool {
	return page == "ARCHITECTURE.md" || page == "CONTRIBUTING.md" ||
		strings.HasPrefix(page, "docs/design/") || strings.HasPrefix(page, "docs/extending/")
}

// lostNames finds names of code that occur on the pages but not in the sources.
func lostNames(all pages) (found []finding) {
	words := map[string]bool{}
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			for _, word := range anyWord.FindAllString(text, -1) {
				words[word] = true
			}
		}
	}

	for page, text := range all {
		if !describesCode(page) {
			continue
		}

		prose(text, func(number int, line string) {
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				if name := m[1]; nameInCode.MatchString(name) && isGoName.MatchString(name) {
					found = append(found, lostParts(page, number, name, words)...)
				}
			}
		})
	}

	return found
}

// lostParts returns the parts of a selector that do not occur in the sources.
func lostParts(page string, number int, name string, words map[string]bool) (found []finding) {
	for _, part := range strings.Split(strings.TrimSuffix(name, "()"), ".") {
		if !words[part] && !externalName.MatchString(part) {
			text := fmt.Sprintf("no source file contains %s, in %s", part, name)
			found = append(found, finding{page, number, text})
		}
	}

	return found
}
