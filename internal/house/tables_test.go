package house

import (
	"regexp"
	"strings"
	"testing"
)

var underHeader = regexp.MustCompile(`^\|[ :|-]*-[ :|-]*\|$`)

func headlessTables(all pages) []finding {
	var found []finding
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			continue
		}

		lines := append(strings.Split(text, "\n"), "")
		inTable := false
		prose(text, func(number int, line string) {
			row := strings.HasPrefix(line, "|")
			if row && !inTable && !underHeader.MatchString(lines[number]) {
				found = append(found, finding{name, number, "a row without a header"})
			}

			inTable = row
		})
	}

	return found
}

// TestReadmeTimesAreMeasured compares the table in the README with the page of measurements.
func TestReadmeTimesAreMeasured(t *testing.T) {
	all := loadPages(t)
	measured, rows := all["docs/measurements/README.md"], 0
	_, table, _ := strings.Cut(all["README.md"], "Times of an all-reduce")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 5 {
			continue
		}

		rows++
		if times := strings.Join(cells[1:], " / "); !strings.Contains(measured, times) {
			t.Errorf("docs/measurements/README.md lacks %q, which README.md has for %s", times, cells[0])
		}
	}

	if rows < 4 {
		t.Errorf("found only %d rows, want 4 or more", rows)
	}
}
