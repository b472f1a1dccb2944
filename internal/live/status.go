package live

import (
	"bytes"
	_ "embed" // for status.html
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"
)

//go:embed status.html
var statusText string

var statusPage = template.Must(template.New("status").Funcs(template.FuncMap{
	"bytes": formatBytes, "seconds": formatSeconds, "ranks": formatRanks, "size": sizeRange,
}).Parse(statusText))

// writeStatus writes a page with tables about the ranks, for browsers without JavaScript.
func writeStatus(w http.ResponseWriter, m Machine) {
	var text bytes.Buffer
	if err := statusPage.Execute(&text, m); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // fails if the client has disconnected
}

// formatBytes formats a size, such as "12.0 MiB".
func formatBytes(n int64) string {
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && value >= 1024 {
		value, units = value/1024, units[1:]
	}

	if units[0] == "B" {
		return strconv.FormatInt(n, 10) + " B"
	}

	return fmt.Sprintf("%.1f %s", value, units[0])
}

// formatSeconds formats a time, such as "1.25ms".
func formatSeconds(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}

	return d.Round(time.Second).String()
}

// formatRanks formats a list of ranks, such as "ranks 2, 3".
func formatRanks(ranks []int) string {
	texts := make([]string, len(ranks))
	for i, r := range ranks {
		texts[i] = strconv.Itoa(r)
	}

	if len(ranks) == 1 {
		return "rank " + texts[0]
	}

	return "ranks " + strings.Join(texts, ", ")
}
