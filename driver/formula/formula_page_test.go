package formula_test

import (
	"os"
	"strings"
	"testing"
)

// TestThePageShowsTheCodeThatIsTested compares docs/reference/deterministic.md with the source.
func TestThePageShowsTheCodeThatIsTested(t *testing.T) {
	source, err := os.ReadFile("formula.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/reference/deterministic.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(source), "\nfunc combine")
	_, shown, opened := strings.Cut(string(page), "```go\n")
	shown, _, closed := strings.Cut(shown, "```")
	if want := "func combine" + code; !found || !opened || !closed || shown != want {
		t.Errorf("the page does not show driver/formula/formula.go from combine on:\n%s", want)
	}
}
