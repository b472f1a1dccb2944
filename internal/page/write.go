package page

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"
)

// magic is the beginning of the data. The last byte is the version of the format.
const magic = "SYMPAGE\x01"

// script and style are built from web/src by web/build.go.
var (
	//go:embed bundle/page.js
	script string
	//go:embed bundle/page.css
	style string
)

// location is the offset and the length of a column.
type location [2]int

type trackHeader struct {
	Rank     int                 `json:"rank"`
	First    int                 `json:"first"`
	Events   int                 `json:"events"`
	Segments []Segment           `json:"segments"`
	Columns  map[string]location `json:"columns"`
}

// header returns the JSON header and the columns.
func (p *Page) header() ([]byte, [][]byte, error) {
	offset, columns := 0, [][]byte{}
	add := func(b []byte) location {
		at := location{offset, len(b)}
		offset, columns = offset+len(b), append(columns, b)
		return at
	}
	type sequenceHeader struct {
		Sequence
		Tracks []trackHeader `json:"tracks"`
	}
	h := struct {
		*Page
		Sequences  []sequenceHeader `json:"sequences"`
		StackCount int              `json:"stackCount"`
		Stacks     location         `json:"stacks"`
	}{Page: p, StackCount: p.stackCount, Stacks: add(p.stacks)}
	for _, s := range p.Sequences {
		tracks := []trackHeader{}
		for _, t := range s.Tracks {
			at := map[string]location{}
			for c, b := range t.columns {
				at[columnNames[c]] = add(b)
			}
			tracks = append(tracks, trackHeader{t.Rank, t.First, t.count, t.Segments, at})
		}
		h.Sequences = append(h.Sequences, sequenceHeader{s, tracks})
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the header of a page: %w", err)
	}
	return text, columns, nil
}

// WriteData writes the data of the page, uncompressed and without the HTML.
func (p *Page) WriteData(w io.Writer) error {
	header, columns, err := p.header()
	if err != nil {
		return err
	}
	begin := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(header)))
	for _, part := range append([][]byte{begin, header}, columns...) {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("writing the data of a page: %w", err)
		}
	}
	return nil
}

// WriteHTML writes the page as an HTML file that contains the data. A browser without JavaScript
// shows the text plain.
func (p *Page) WriteHTML(w io.Writer, plain string) error {
	b := bufio.NewWriter(w)
	writeTop(b, p.Title, plain)
	fmt.Fprint(b, `<script type="application/octet-stream" id="data">`)
	text := base64.NewEncoder(base64.StdEncoding, b)
	packed := gzip.NewWriter(text)
	if err := p.WriteData(packed); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return fmt.Errorf("compressing the data of a page: %w", err)
	}
	if err := text.Close(); err != nil {
		return fmt.Errorf("encoding the data of a page: %w", err)
	}
	return writeBottom(b)
}

// WriteShell writes an HTML page without data. The page fetches the data from source, a relative
// URL.
func WriteShell(w io.Writer, title, source string) error {
	b := bufio.NewWriter(w)
	writeTop(b, title, "This page needs JavaScript.")
	fmt.Fprintf(b, `<script type="application/octet-stream" id="data" data-source="%s">`,
		html.EscapeString(source))
	return writeBottom(b)
}

// writeTop writes the part of a page that precedes the data.
func writeTop(b *bufio.Writer, title, plain string) {
	fmt.Fprintf(b, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%s">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<style>%s</style>
</head>
<body>
<noscript><pre>%s</pre></noscript>
<div id="app"></div>
`, Policy(), html.EscapeString(title), style, html.EscapeString(plain))
}

func writeBottom(b *bufio.Writer) error {
	fmt.Fprintf(b, "</script>\n<script>%s</script>\n</body>\n</html>\n", script)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing a page: %w", err)
	}
	return nil
}

// Policy returns the Content-Security-Policy of pages, which permits only the script and style of
// this package. Servers may also send the policy as a header.
func Policy() string {
	return strings.Join([]string{
		"default-src 'none'", "script-src " + hashOf(script), "style-src " + hashOf(style),
		"connect-src 'self'", "base-uri 'none'", "form-action 'none'",
	}, "; ")
}

// hashOf returns the expression in a Content-Security-Policy that permits a script or a style.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
