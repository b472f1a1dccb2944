package live

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, path string, s Snapshot) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h := NewHandler(func(int) Snapshot { return s })
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}

func TestPageEscapesNames(t *testing.T) {
	w := get(t, "/status", example(2))
	text := w.Body.String()
	if w.Code != 200 || strings.Contains(text, "<script") || !strings.Contains(text, "&lt;script") {
		t.Errorf("status %d, page %q; want escaped markup", w.Code, text)
	}

	for _, want := range []string{
		"rank 3", "AllReduce 7 of group", "1.5s", "00:00:02.000 UTC", "rank 3 is lost", "1-2MB",
		"counted above, but not timed", "4.0 KiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("status page does not contain %q", want)
		}
	}

	if w.Header().Get("Content-Security-Policy") == "" {
		t.Error("status page has no Content-Security-Policy")
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{formatBytes(0), "0 B"},
		{formatBytes(1023), "1023 B"},
		{formatBytes(1536), "1.5 KiB"},
		{formatBytes(3 << 50), "3072.0 TiB"},
		{formatSeconds(0), "0s"},
		{formatSeconds(123e-9), "123ns"},
		{formatSeconds(1.2345e-6), "1.23µs"},
		{formatSeconds(0.0123456), "12.3ms"},
		{formatSeconds(75.25), "1m15.3s"},
		{formatRanks([]int{4}), "rank 4"},
		{formatRanks([]int{1, 2}), "ranks 1, 2"},
		{sizeRange(0, 1), "0-1B"},
		{sizeRange(512, 1024), "512-1024B"},
		{sizeRange(1024, 2048), "1-2KB"},
		{sizeRange(1<<29, 1<<30), "512-1024MB"},
	} {
		if c.got != c.want {
			t.Errorf("got %q; want %q", c.got, c.want)
		}
	}
}

func TestStatusShowsErrorOfRank(t *testing.T) {
	w := get(t, "/status", Snapshot{Rank: 5, Error: "has not answered", Opened: time.Time{}})
	if text := w.Body.String(); !strings.Contains(text, "has not answered") {
		t.Errorf("page = %q; want it to show the error", text)
	}
}
