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

// A page is an HTML file with a script and with data, which the script shows. The data consist of
// these parts:
//
//	"SYMPAGE\x01", the prefix
//	length of the header, in 4 bytes
//	header: {"title": ..., "sequences": [... {"columns": {"size": [90, 3000], ...} ...} ...], ...}
//	columns, one after the other
//
// A column is a sequence of bytes. The first column holds all call stacks. Each other column holds
// the values of one field, such as the sizes of all events of a track.
//
// The header is the JSON of a Page. In place of events and call stacks, it has the location of each
// column: [90, 3000] means that the column begins 90 bytes after the header, and has 3000 bytes.

// dataPrefix is the first part of the data. Its last byte is the version of the format.
const dataPrefix = "SYMPAGE\x01"

// The script and style of the page, which web/build.go builds from web/src.
var (
	//go:embed bundle/page.js
	script string
	//go:embed bundle/page.css
	style string
)

// columnLocation holds the offset and the length of a column, in bytes. The offset is relative to
// the end of the header. It is an array, so that its JSON is short.
type columnLocation [2]int

// pageHeader is the JSON form of a Page. Its field Sequences replaces that of Page.
type pageHeader struct {
	*Page
	Sequences  []sequenceHeader `json:"sequences"`
	StackCount int              `json:"stackCount"`
	Stacks     columnLocation   `json:"stacks"` // column with all call stacks
}

// sequenceHeader is the JSON form of a Sequence. Its field Tracks replaces that of Sequence.
type sequenceHeader struct {
	Sequence
	Tracks []trackHeader `json:"tracks"`
}

// trackHeader is the JSON form of a Track.
type trackHeader struct {
	Rank     int                       `json:"rank"`
	First    int                       `json:"first"`
	Events   int                       `json:"events"` // number of events
	Segments []Segment                 `json:"segments"`
	Columns  map[string]columnLocation `json:"columns"` // by name
}

// columnList collects the columns that follow the header.
type columnList struct {
	columns [][]byte
	bytes   int // sum of their lengths
}

// add appends a column and returns its location.
func (l *columnList) add(column []byte) columnLocation {
	location := columnLocation{l.bytes, len(column)}
	l.bytes += len(column)
	l.columns = append(l.columns, column)
	return location
}

// addTrack appends the columns of a track and returns the track's header.
func (l *columnList) addTrack(t *Track) trackHeader {
	locations := map[string]columnLocation{}
	for i, column := range t.columns {
		locations[columnNames[i]] = l.add(column)
	}

	return trackHeader{
		Rank:     t.Rank,
		First:    t.First,
		Events:   t.count,
		Segments: t.Segments,
		Columns:  locations,
	}
}

// header returns the header of the page's data, and the columns that follow it.
func (p *Page) header() (encoded []byte, columns [][]byte, err error) {
	var list columnList
	h := pageHeader{Page: p, StackCount: p.stackCount, Stacks: list.add(p.stacks)}
	for _, s := range p.Sequences {
		tracks := []trackHeader{} // not nil, so that the JSON is [] and not null
		for _, t := range s.Tracks {
			tracks = append(tracks, list.addTrack(t))
		}

		h.Sequences = append(h.Sequences, sequenceHeader{Sequence: s, Tracks: tracks})
	}

	encoded, err = json.Marshal(h)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the header of a page: %w", err)
	}

	return encoded, list.columns, nil
}

// WriteData writes the data of the page, without the HTML and without compression.
func (p *Page) WriteData(w io.Writer) error {
	header, columns, err := p.header()
	if err != nil {
		return err
	}

	prefixAndLength := binary.LittleEndian.AppendUint32([]byte(dataPrefix), uint32(len(header)))
	parts := append([][]byte{prefixAndLength, header}, columns...)
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
	// The compressor writes to the encoder, so it must be closed first.
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

// WriteShell writes the page without data as an HTML file. The script fetches the data from source,
// a relative URL.
func WriteShell(w io.Writer, title, source string) error {
	b := bufio.NewWriter(w)
	writeTop(b, title, "This page needs JavaScript.")
	fmt.Fprintf(b, `<script type="application/octet-stream" id="data" data-source="%s">`,
		html.EscapeString(source))
	return writeBottom(b)
}

// writeTop writes the HTML before the element with the data. If this fails, writeBottom returns the
// error, because b keeps it.
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

// writeBottom ends the element with the data, writes the rest of the HTML, and flushes b. It
// returns the first error of any write to b.
func writeBottom(b *bufio.Writer) error {
	fmt.Fprintf(b, "</script>\n<script>%s</script>\n</body>\n</html>\n", script)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing a page: %w", err)
	}

	return nil
}

// Policy returns the Content-Security-Policy of pages. It permits only the script and style of this
// package, and requests to the server of the page. Servers can send it as an HTTP header.
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

// hashOf returns the part of a Content-Security-Policy that permits a script or style with the
// given text.
func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}
