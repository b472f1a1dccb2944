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

// dataPrefix is the start of the data of a page. Its last byte is the version of the format.
const dataPrefix = "SYMPAGE\x01"

// The script and style of the page, which web/build.go builds from web/src.
var (
	//go:embed bundle/page.js
	script string
	//go:embed bundle/page.css
	style string
)

// columnLocation holds the offset of a column in bytes after the header, and its length in bytes.
type columnLocation [2]int

// trackHeader is the JSON form of a Track. Its columns follow the header.
type trackHeader struct {
	Rank     int                       `json:"rank"`
	First    int                       `json:"first"`
	Events   int                       `json:"events"`
	Segments []Segment                 `json:"segments"`
	Columns  map[string]columnLocation `json:"columns"`
}

// header returns the header of the page's data in JSON, and the columns that follow it.
func (p *Page) header() (encoded []byte, columns [][]byte, err error) {
	offset := 0
	addColumn := func(column []byte) columnLocation {
		location := columnLocation{offset, len(column)}
		offset += len(column)
		columns = append(columns, column)
		return location
	}
	type sequenceHeader struct {
		Sequence
		Tracks []trackHeader `json:"tracks"`
	}
	h := struct {
		*Page
		Sequences  []sequenceHeader `json:"sequences"`
		StackCount int              `json:"stackCount"`
		Stacks     columnLocation   `json:"stacks"`
	}{Page: p, StackCount: p.stackCount, Stacks: addColumn(p.stacks)}
	for _, s := range p.Sequences {
		tracks := []trackHeader{}
		for _, t := range s.Tracks {
			locations := map[string]columnLocation{}
			for i, column := range t.columns {
				locations[columnNames[i]] = addColumn(column)
			}
			tracks = append(tracks, trackHeader{t.Rank, t.First, t.count, t.Segments, locations})
		}
		h.Sequences = append(h.Sequences, sequenceHeader{s, tracks})
	}
	encoded, err = json.Marshal(h)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the header of a page: %w", err)
	}
	return encoded, columns, nil
}

// WriteData writes the data of the page, uncompressed and without the HTML: dataPrefix, the length
// of the header in 4 bytes, the header and the columns.
func (p *Page) WriteData(w io.Writer) error {
	header, columns, err := p.header()
	if err != nil {
		return err
	}
	start := binary.LittleEndian.AppendUint32([]byte(dataPrefix), uint32(len(header)))
	for _, part := range append([][]byte{start, header}, columns...) {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("writing the data of a page: %w", err)
		}
	}
	return nil
}

// WriteHTML writes the page with its data as one HTML file. Browsers without JavaScript show
// plainText instead.
func (p *Page) WriteHTML(w io.Writer, plainText string) error {
	b := bufio.NewWriter(w)
	writeTop(b, p.Title, plainText)
	fmt.Fprint(b, `<script type="application/octet-stream" id="data">`)
	encoder := base64.NewEncoder(base64.StdEncoding, b)
	compressor := gzip.NewWriter(encoder)
	if err := p.WriteData(compressor); err != nil {
		return err
	}
	if err := compressor.Close(); err != nil {
		return fmt.Errorf("compressing the data of a page: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return fmt.Errorf("encoding the data of a page: %w", err)
	}
	return writeBottom(b)
}

// WriteShell writes an HTML page without data, whose script fetches the data from the relative URL
// source.
func WriteShell(w io.Writer, title, source string) error {
	b := bufio.NewWriter(w)
	writeTop(b, title, "This page needs JavaScript.")
	fmt.Fprintf(b, `<script type="application/octet-stream" id="data" data-source="%s">`,
		html.EscapeString(source))
	return writeBottom(b)
}

// writeTop writes the HTML up to the element with the data.
func writeTop(b *bufio.Writer, title, plainText string) {
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
`, Policy(), html.EscapeString(title), style, html.EscapeString(plainText))
}

// writeBottom ends the element with the data, writes the rest of the HTML, and flushes b. bufio
// keeps the first error, so it also returns errors of earlier writes.
func writeBottom(b *bufio.Writer) error {
	fmt.Fprintf(b, "</script>\n<script>%s</script>\n</body>\n</html>\n", script)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing a page: %w", err)
	}
	return nil
}

// Policy returns the Content-Security-Policy of pages, which permits only the script and style of
// this package. Servers can send it as a header.
func Policy() string {
	return strings.Join([]string{
		"default-src 'none'", "script-src " + hashOf(script), "style-src " + hashOf(style),
		"connect-src 'self'", "base-uri 'none'", "form-action 'none'",
	}, "; ")
}

// hashOf returns the expression that permits a script or style in a Content-Security-Policy.
func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}
