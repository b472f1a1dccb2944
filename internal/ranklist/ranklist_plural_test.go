package ranklist

import "testing"

func TestPlural(t *testing.T) {
	for n, want := range map[int64]string{0: "0 ranks", 1: "1 rank", 2: "2 ranks", -1: "-1 ranks"} {
		if got := Plural(n, "rank"); got != want {
			t.Errorf("Plural(%d) = %q, want %q", n, got, want)
		}
	}
}
