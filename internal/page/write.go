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

// columnLocation holds the offset of a column and its length, in bytes. Offset 0 is the end of the
// header. It is an array, so that its JSON is short.
type columnLocation [2]int

// trackHeader is the JSON form of a Track, without the events. These are in columns after the
// header of the page, and Columns gives their locations by name.
type trackHeader struct {
	Rank     int                       `json:"rank"`
	First    int                       `json:"first"`
	Events   int                       `json:"events"` // number of events
	Segments []Segment                 `json:"segments"`
	Columns  map[string]columnLocation `json:"columns"`
}

// sequenceHeader is the JSON form of a Sequence. Its field Tracks hides that of Sequence.
type sequenceHeader struct {
	Sequence
	Tracks []trackHeader `json:"tracks"`
}

// pageHeader is the JSON form of a Page. Its field Sequences hides that of Page.
type pageHeader struct {
	*Page
	Sequences  []sequenceHeader `json:"sequences"`
	StackCount int              `json:"stackCount"`
	Stacks     columnLocation   `json:"stacks"`
}

// header returns the header of the page's data in JSON, and the columns that follow it.
func (p *Page) header() (encoded []byte, columns [][]byte, err error) {
	offset := 0
	// addColumn appends a column to columns and returns its location.
	addColumn := func(column []byte) columnLocation {
		location := columnLocation{offset, len(column)}
		offset += len(column)
		columns = append(columns, column)
		return location
	}
	h := pageHeader{Page: p, StackCount: p.stackCount, Stacks: addColumn(p.stacks)}
	for _, s := range p.Sequences {
		tracks := []trackHeader{} // not nil, so that the JSON is [] and not null
		for _, t := range s.Tracks {
			locations := map[string]columnLocation{}
			for i, column := range t.columns {
				locations[columnNames[i]] = addColumn(column)
			}

			tracks = append(tracks, trackHeader{
				Rank:     t.Rank,
				First:    t.First,
				Events:   t.count,
				Segments: t.Segments,
				Columns:  locations,
			})
		}

		h.Sequences = append(h.Sequences, sequenceHeader{Sequence: s, Tracks: tracks})
	}

	encoded, err = json.Marshal(h)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the header of a page: %w", err)
	}

	return encoded, columns, nil
}

// WriteData writes the data of the page, uncompressed and without the HTML. The data consist of
// dataPrefix, the length of the header in 4 bytes, the header and the columns.
func (p *Page) WriteData(w io.Writer) error {
	header, columns, err := p.header()
	if err != nil {
		return err
	}

	start := binary.LittleEndian.AppendUint32([]byte(dataPrefix), uint32(len(header)))
	parts := append([][]byte{start, header}, columns...)
	for _, part := range parts {
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
	// The data pass through the compressor and then the encoder, which must be closed in this
	// order.
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

// WriteShell writes an HTML page without data. The script of the page fetches the data from the
// relative URL source.
func WriteShell(w io.Writer, title, source string) error {
	b := bufio.NewWriter(w)
	writeTop(b, title, "This page needs JavaScript.")
	fmt.Fprintf(b, `<script type="application/octet-stream" id="data" data-source="%s">`,
		html.EscapeString(source))
	return writeBottom(b)
}

// writeTop writes the HTML up to the element with the data. Errors are returned by writeBottom.
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

// writeBottom ends the element with the data, writes the rest of the HTML, and flushes b. It also
// returns errors of earlier writes to b, because a bufio.Writer keeps its first error.
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
	directives := []string{
		"default-src 'none'",
		"script-src " + hashOf(script),
		"style-src " + hashOf(style),
		"connect-src 'self'", // the script fetches the data from the same server
		"base-uri 'none'",
		"form-action 'none'",
	}
	return strings.Join(directives, "; ")
}

// hashOf returns the expression that permits a script or style in a Content-Security-Policy.
func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}
