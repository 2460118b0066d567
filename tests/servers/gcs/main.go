// gcs is fake-gcs-server with the parts of the XML API that it lacks and that clients of the XML API need. Objects, their
// generations, entity tags and ranged reads are the emulator's. Written here, as the documentation of Cloud Storage's XML
// API describes them, are:
//
//   - uploads, whole and in parts (the emulator has uploads of its JSON API and signed URLs only: its issue 852),
//
//   - pages of a listing (it ignores max-keys, start-after and continuation-token, and returns everything),
//
//   - If-Match (it ignores preconditions: its issue 994),
//
//   - refusing a wrong token (it has no authentication).
//
//     gcs PORT BUCKET TOKEN   serves on 127.0.0.1
package main

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type gateway struct {
	emulator *fakestorage.Server
	token    string
	mutex    sync.Mutex
	// Of each upload, its parts by number.
	uploads map[string]map[int][]byte
	begun   int
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("use: gcs PORT BUCKET TOKEN")
	}
	host := "127.0.0.1:" + os.Args[1]
	emulator, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: host})
	if err != nil {
		log.Fatal(err)
	}
	emulator.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: os.Args[2]})
	log.Fatal(http.ListenAndServe(host, &gateway{
		emulator: emulator,
		token:    os.Args[3],
		uploads:  map[string]map[int][]byte{},
	}))
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, object, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	switch {
	case r.URL.Path == "/":
		w.WriteHeader(http.StatusOK)
	case r.Header.Get("Authorization") != "Bearer "+g.token:
		refuse(w, http.StatusUnauthorized, "AuthenticationRequired", "Authentication required.")
	case r.Method == http.MethodGet && object == "":
		g.list(w, bucket, query.Get)
	case r.Method == http.MethodPost && query.Has("uploads"):
		g.begin(w, bucket, object)
	case query.Has("uploadId"):
		g.part(w, r, bucket, object)
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			refuse(w, http.StatusBadRequest, "IncompleteBody", err.Error())
			return
		}
		if g.store(w, bucket, object, body) {
			w.WriteHeader(http.StatusOK)
		}
	default:
		if wanted := r.Header.Get("If-Match"); wanted != "" {
			found, err := g.emulator.GetObject(bucket, object)
			if err == nil && tag(found.ObjectAttrs) != wanted {
				refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "A precondition does not hold.")
				return
			}
		}
		g.emulator.HTTPHandler().ServeHTTP(w, r)
	}
}

// Quoted, as the emulator sends it in the header of an object.
func tag(object fakestorage.ObjectAttrs) string { return fmt.Sprintf("%q", object.Etag) }

func refuse(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: message})
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := xml.Marshal(body)
	if err != nil {
		log.Fatal(err)
	}
	w.Header().Set("Content-Type", "application/xml; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), text...))
}

// Stores an object and sets the headers that say what became of it. Whether it did; otherwise the answer is written.
func (g *gateway) store(w http.ResponseWriter, bucket, object string, body []byte) bool {
	err := g.emulator.CreateObjectStreaming(fakestorage.StreamingObject{
		ObjectAttrs: fakestorage.ObjectAttrs{BucketName: bucket, Name: object},
		Content:     readSeekCloser{bytes.NewReader(body)},
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return false
	}
	stored, err := g.emulator.GetObject(bucket, object)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return false
	}
	w.Header().Set("ETag", tag(stored.ObjectAttrs))
	w.Header().Set("x-goog-generation", strconv.FormatInt(stored.Generation, 10))
	return true
}

type readSeekCloser struct{ *bytes.Reader }

func (readSeekCloser) Close() error { return nil }

type contents struct {
	Key, LastModified, ETag string
	Generation, Size        int64
}

type commonPrefix struct{ Prefix string }

func (g *gateway) list(w http.ResponseWriter, bucket string, query func(string) string) {
	limit := 1000
	if text := query("max-keys"); text != "" {
		limit, _ = strconv.Atoi(text)
	}
	after := max(query("start-after"), query("continuation-token"))
	found, err := g.emulator.ListObjectsWithOptionsPaginated(bucket, fakestorage.ListOptions{
		Prefix: query("prefix"), Delimiter: query("delimiter"),
	})
	if err != nil {
		refuse(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	type entry struct {
		name   string
		object *fakestorage.ObjectAttrs
	}
	var entries []entry
	for i := range found.Objects {
		entries = append(entries, entry{found.Objects[i].Name, &found.Objects[i]})
	}
	for _, prefix := range found.Prefixes {
		entries = append(entries, entry{prefix, nil})
	}
	sort.Slice(entries, func(a, b int) bool { return entries[a].name < entries[b].name })
	entries = entries[sort.Search(len(entries), func(i int) bool { return entries[i].name > after }):]
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		KeyCount              int
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []contents
		CommonPrefixes        []commonPrefix
	}{Name: bucket, Prefix: query("prefix"), IsTruncated: len(entries) > limit}
	if result.IsTruncated {
		entries = entries[:limit]
		result.NextContinuationToken = entries[limit-1].name
	}
	result.KeyCount = len(entries)
	for _, entry := range entries {
		if entry.object == nil {
			result.CommonPrefixes = append(result.CommonPrefixes, commonPrefix{entry.name})
			continue
		}
		result.Contents = append(result.Contents, contents{
			Key: entry.name, LastModified: entry.object.Updated.UTC().Format(time.RFC3339Nano), ETag: tag(*entry.object),
			Generation: entry.object.Generation, Size: entry.object.Size,
		})
	}
	answer(w, http.StatusOK, result)
}

func (g *gateway) begin(w http.ResponseWriter, bucket, object string) {
	g.mutex.Lock()
	g.begun++
	id := fmt.Sprintf("upload-%d", g.begun)
	g.uploads[id] = map[int][]byte{}
	g.mutex.Unlock()
	answer(w, http.StatusOK, struct {
		XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: bucket, Key: object, UploadId: id})
}

// A part of an upload (PUT), its completion (POST) or its end (DELETE).
func (g *gateway) part(w http.ResponseWriter, r *http.Request, bucket, object string) {
	id := r.URL.Query().Get("uploadId")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, "IncompleteBody", err.Error())
		return
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	parts, known := g.uploads[id]
	if !known {
		refuse(w, http.StatusNotFound, "NoSuchUpload", "The requested upload was not found.")
		return
	}
	switch r.Method {
	case http.MethodPut:
		number, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
		if err != nil {
			refuse(w, http.StatusBadRequest, "InvalidArgument", err.Error())
			return
		}
		parts[number] = body
		w.Header().Set("ETag", partTag(body))
		w.WriteHeader(http.StatusOK)
	case http.MethodPost:
		var wanted struct {
			Part []struct {
				PartNumber int
				ETag       string
			}
		}
		if err := xml.Unmarshal(body, &wanted); err != nil {
			refuse(w, http.StatusBadRequest, "MalformedCompleteMultipartUploadRequest", err.Error())
			return
		}
		var whole []byte
		for _, part := range wanted.Part {
			bytes, known := parts[part.PartNumber]
			if !known || partTag(bytes) != part.ETag {
				refuse(w, http.StatusBadRequest, "InvalidPart", "A part was not found or has another ETag.")
				return
			}
			whole = append(whole, bytes...)
		}
		if g.store(w, bucket, object, whole) {
			delete(g.uploads, id)
			answer(w, http.StatusOK, struct {
				XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
				Bucket, Key, ETag string
			}{Bucket: bucket, Key: object, ETag: w.Header().Get("ETag")})
		}
	case http.MethodDelete:
		delete(g.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	}
}

func partTag(part []byte) string {
	sum := md5.Sum(part)
	return fmt.Sprintf("%q", hex.EncodeToString(sum[:]))
}
