package trace

import (
	"strings"
	"testing"
)

func TestPathsAreRedacted(t *testing.T) {
	for text, want := range map[string]string{
		"open /home/secret dir/secret file: not found":      "open ?: not found",
		`"/home/secret dir/x (secret), y" of 2`:             `"?" of 2`,
		`"/home/\"secret\" dir/x"`:                          `"?"`,
		`'/home/secret dir/x' is missing`:                   `'?' is missing`,
		`"copied ~/secret/a b" to "/secret b/c": done`:      `"copied ?" to "?": done`,
		"/secret/o'neil (secret)/x y":                       "?",
		"in secret.py:12: late, after /secret a/b.go:3: no": "in ?: late, after ?: no",
		"loading /secret/a: /secret/a: ~/secret/b: no":      "loading ?: ?: ?: no",
		"step 3/4 of a / b":                                 "step 3/4 of a / b",
		"":                                                  "",
	} {
		got := withoutPaths(text)
		if got != want || strings.Contains(got, "secret") {
			t.Errorf("withoutPaths(%q) = %q, want %q", text, got, want)
		}
	}
}
