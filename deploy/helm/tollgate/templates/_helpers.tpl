{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tollgate.secret" -}}
{{ .Values.existingSecret | default (include "tollgate.fullname" .) }}
{{- end }}

{{/* The labels that select pods. Call with (list "gateway" .) or (list "redis" .). */}}
{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ (last .).Chart.Name }}
app.kubernetes.io/instance: {{ (last .).Release.Name }}
app.kubernetes.io/component: {{ first . }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ (last .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (last .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (last .).Chart.Name (last .).Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The ports by name. `http` has the main Service, and the others the internal Service. */}}
{{- define "tollgate.ports" -}}
{{- if or .Values.config.target .Values.config.routes }}
http: 8080
{{- end }}
admin: 8081
{{- if .Values.config.forwardAuth }}
auth: 8082
{{- end }}
{{- if or .Values.rateLimitService.files .Values.config.rateLimitService }}
grpc: 8083
{{- end }}
{{- end }}

{{/* The section `rateLimiter` of the gateway's file: the values in `config` replace the defaults. */}}
{{- define "tollgate.config" -}}
{{- mustMergeOverwrite (include "tollgate.defaults" . | fromYaml) (deepCopy .Values.config) | toYaml }}
{{- end }}

{{/* Helm 3 merges no section into a text, so an address in `config` is also the default. */}}
{{- define "tollgate.defaults" -}}
{{- $config := .Values.config }}
{{- $address := .Values.listenAddress }}
{{- $ports := include "tollgate.ports" . | fromYaml }}
admin: {{ dig "admin" (print $address ":8081") $config | toJson }}
{{- if $ports.http }}
listen: {{ dig "listen" (print $address ":8080") $config | toJson }}
{{- end }}
{{- if $ports.auth }}
forwardAuth:
  listen: {{ dig "forwardAuth" "listen" (print $address ":8082") $config | toJson }}
{{- end }}
{{- if $ports.grpc }}
rateLimitService:
  listen: {{ dig "rateLimitService" "listen" (print $address ":8083") $config | toJson }}
  config:
    {{- range $file, $_ := .Values.rateLimitService.files }}
    - /etc/tollgate/{{ $file }}
    {{- end }}
{{- end }}
{{- if .Values.redis.deploy }}
store:
  redis:
    url: redis://:${REDIS_PASSWORD}@{{ include "tollgate.fullname" . }}-redis:6379
    keySecret: ${KEY_SECRET}
{{- end }}
timeouts:
  drainDelay: {{ .Values.drain.delaySeconds }}s
  drain: {{ .Values.drain.timeoutSeconds }}s
{{- end }}

{{- define "tollgate.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Call with the user's number. */}}
{{- define "tollgate.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
